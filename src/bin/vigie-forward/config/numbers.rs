//! Whole numbers within a range.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserializer,
    de::{self, Unexpected, Visitor},
};

/// Reads a whole number from `FIRST` to `LAST`, both of which `T` has.
pub(super) fn number<'de, D, T, const FIRST: i64, const LAST: i64>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    struct NumberVisitor<T, const FIRST: i64, const LAST: i64>(PhantomData<T>);

    impl<T: TryFrom<i64>, const FIRST: i64, const LAST: i64> Visitor<'_>
        for NumberVisitor<T, FIRST, LAST>
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match LAST {
                i64::MAX => write!(f, "a whole number from {FIRST}, without quotes"),
                _ => write!(f, "a whole number from {FIRST} to {LAST}, without quotes"),
            }
        }

        fn visit_i64<E: de::Error>(self, given: i64) -> Result<T, E> {
            let in_range = Some(given).filter(|given| (FIRST..=LAST).contains(given));
            let read = in_range.and_then(|given| T::try_from(given).ok());
            read.ok_or_else(|| E::invalid_value(Unexpected::Signed(given), &self))
        }

        fn visit_u64<E: de::Error>(self, given: u64) -> Result<T, E> {
            Err(E::invalid_value(Unexpected::Unsigned(given), &self))
        }
    }

    from.deserialize_any(NumberVisitor::<T, FIRST, LAST>(PhantomData))
}

/// As [`number`], of a setting without a default.
pub(super) fn some_number<'de, D, T, const FIRST: i64, const LAST: i64>(
    from: D,
) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    number::<D, T, FIRST, LAST>(from).map(Some)
}

/// The largest number of 32 bits.
pub(super) const U32_MAX: i64 = 0xffff_ffff;
