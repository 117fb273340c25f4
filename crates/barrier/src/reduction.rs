//! Reductions: one value computed from all members' values while they wait for each other.

use std::{fmt, sync::Arc};

use thiserror::Error;

use crate::packet::PAYLOAD_BYTES_MAX;

/// The operation by which the values of all members are combined. Each member enters with a value and leaves with the result.
///
/// Values are bytes, of the same length at every member. The order in which they are combined depends on the
/// algorithm and, for shuffle exchange and dissemination, on the member, so the operation must be associative and
/// commutative. A sum of floating point numbers may differ between members in its last bits, except with algorithms
/// that end at a master.
#[derive(Clone)]
pub struct Reduction {
    bytes: usize,
    operation: ReductionOperation,
}

#[derive(Clone)]
enum ReductionOperation {
    Builtin(Builtin, Element),
    User(Counting, Arc<Function>),
}

type Function = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// An operation on numbers, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Builtin {
    /// The smallest; among floating point numbers, a NaN is ignored.
    Min,
    /// The largest; among floating point numbers, a NaN is ignored.
    Max,
    /// The sum; integers wrap around.
    Sum,
}

/// The elements of a value: numbers of 64 bits, least significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// Unsigned integers.
    U64,
    /// Signed integers.
    I64,
    /// Floating point numbers.
    F64,
}

/// The permission to count a value more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counting {
    /// No, as for a sum: schedules in which a member hears of another twice are refused.
    Once,
    /// Yes, as for a minimum: every schedule works.
    AnyTimes,
}

/// A value is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a value of {bytes} bytes is longer than {PAYLOAD_BYTES_MAX}, the most that a message carries"
)]
#[non_exhaustive]
pub struct ReductionError {
    /// The requested length.
    pub bytes: usize,
}

impl Reduction {
    /// Reduces `count` numbers, at most 128.
    ///
    /// # Errors
    /// [`ReductionError`] if there are more.
    pub fn builtin(
        operation: Builtin,
        element: Element,
        count: usize,
    ) -> Result<Self, ReductionError> {
        Self::new(count.saturating_mul(8), ReductionOperation::Builtin(operation, element))
    }

    /// Reduces values of this many bytes, at most 1024, with a function of your own, which combines the second value
    /// into the first. Both always have that length. The function should be short, and must not panic.
    ///
    /// # Errors
    /// [`ReductionError`] if they are longer.
    pub fn user(
        bytes: usize,
        counting: Counting,
        function: impl Fn(&mut [u8], &[u8]) + Send + Sync + 'static,
    ) -> Result<Self, ReductionError> {
        Self::new(bytes, ReductionOperation::User(counting, Arc::new(function)))
    }

    fn new(bytes: usize, operation: ReductionOperation) -> Result<Self, ReductionError> {
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(ReductionError { bytes });
        }
        Ok(Self { bytes, operation })
    }

    /// Returns the length of a value.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a value may be counted more than once.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        match self.operation {
            ReductionOperation::Builtin(Builtin::Min | Builtin::Max, _) => Counting::AnyTimes,
            ReductionOperation::Builtin(Builtin::Sum, _) => Counting::Once,
            ReductionOperation::User(counting, _) => counting,
        }
    }

    /// Combines `other` into `into`.
    pub(crate) fn reduce(&self, into: &mut [u8], other: &[u8]) {
        match &self.operation {
            ReductionOperation::User(_, function) => function(into, other),
            ReductionOperation::Builtin(operation, element) => {
                let (into, other) = (into.as_chunks_mut().0, other.as_chunks().0);
                for (into, other) in into.iter_mut().zip(other) {
                    *into = element.reduce(*operation, *into, *other);
                }
            }
        }
    }
}

impl Element {
    fn reduce(self, operation: Builtin, one: [u8; 8], other: [u8; 8]) -> [u8; 8] {
        match self {
            Self::U64 => {
                let (one, other) = (u64::from_le_bytes(one), u64::from_le_bytes(other));
                match operation {
                    Builtin::Min => one.min(other),
                    Builtin::Max => one.max(other),
                    Builtin::Sum => one.wrapping_add(other),
                }
                .to_le_bytes()
            }
            Self::I64 => {
                let (one, other) = (i64::from_le_bytes(one), i64::from_le_bytes(other));
                match operation {
                    Builtin::Min => one.min(other),
                    Builtin::Max => one.max(other),
                    Builtin::Sum => one.wrapping_add(other),
                }
                .to_le_bytes()
            }
            Self::F64 => {
                let (one, other) = (f64::from_le_bytes(one), f64::from_le_bytes(other));
                match operation {
                    Builtin::Min => one.min(other),
                    Builtin::Max => one.max(other),
                    Builtin::Sum => one + other,
                }
                .to_le_bytes()
            }
        }
    }
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Reduction");
        f.field("bytes", &self.bytes).field("counting", &self.counting());
        if let ReductionOperation::Builtin(operation, element) = &self.operation {
            f.field("operation", operation).field("element", element);
        }
        f.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced(operation: Builtin, element: Element, one: [u8; 8], other: [u8; 8]) -> [u8; 8] {
        let reduction = Reduction::builtin(operation, element, 1).expect("short");
        let mut into = one;
        reduction.reduce(&mut into, &other);
        into
    }

    /// Goal: each operation does what it is called after, on each kind of number. Method: values that tell the kinds
    /// apart, and the corners.
    #[test]
    fn operations_do_what_they_say() {
        let u = |operation, one: u64, other: u64| {
            u64::from_le_bytes(reduced(
                operation,
                Element::U64,
                one.to_le_bytes(),
                other.to_le_bytes(),
            ))
        };
        assert_eq!(u(Builtin::Min, u64::MAX, 1), 1);
        assert_eq!(u(Builtin::Max, u64::MAX, 1), u64::MAX);
        assert_eq!(u(Builtin::Sum, u64::MAX, 2), 1);
        let i = |operation, one: i64, other: i64| {
            i64::from_le_bytes(reduced(
                operation,
                Element::I64,
                one.to_le_bytes(),
                other.to_le_bytes(),
            ))
        };
        assert_eq!(i(Builtin::Min, -1, 1), -1);
        assert_eq!(i(Builtin::Max, -1, 1), 1);
        assert_eq!(i(Builtin::Sum, i64::MAX, 1), i64::MIN);
        let f = |operation, one: f64, other: f64| {
            f64::from_le_bytes(reduced(
                operation,
                Element::F64,
                one.to_le_bytes(),
                other.to_le_bytes(),
            ))
        };
        assert_eq!(f(Builtin::Min, f64::NAN, -0.5).to_bits(), (-0.5_f64).to_bits());
        assert_eq!(f(Builtin::Max, 2.5, f64::NAN).to_bits(), 2.5_f64.to_bits());
        assert_eq!(f(Builtin::Sum, 2.5, -0.5).to_bits(), 2.0_f64.to_bits());
    }

    /// Goal: values are as long as a message carries, and no longer; several numbers are reduced one by one. Method:
    /// the longest, one more, and a user's function.
    #[test]
    fn values_have_a_longest_length() {
        let sums = Reduction::builtin(Builtin::Sum, Element::U64, 128).expect("fits");
        let mut into: Vec<u8> = (0..128_u64).flat_map(u64::to_le_bytes).collect();
        let other = into.clone();
        sums.reduce(&mut into, &other);
        assert_eq!(into, (0..128_u64).flat_map(|n| (2 * n).to_le_bytes()).collect::<Vec<u8>>());
        assert!(Reduction::builtin(Builtin::Sum, Element::U64, 129).is_err());
        assert!(Reduction::builtin(Builtin::Sum, Element::U64, usize::MAX).is_err());
        let or = |into: &mut [u8], other: &[u8]| into[0] |= other[0];
        assert!(Reduction::user(1025, Counting::AnyTimes, or).is_err());
        let or = Reduction::user(1, Counting::AnyTimes, or).expect("short");
        let mut into = [1];
        or.reduce(&mut into, &[6]);
        assert_eq!(
            (into, or.counting(), sums.counting()),
            ([7], Counting::AnyTimes, Counting::Once)
        );
    }
}
