//! TOML tables that may occur many times or only once, with an error for mixing them up.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use toml::Spanned;

/// The settings of a TOML table with this name.
pub(super) trait TomlTable {
    /// Its name in the file.
    const WORD: &'static str;
}

/// Any number of tables, each written as `[[word]]`, with its position in the file.
#[derive(Debug)]
pub(super) struct Many<T>(pub(super) Vec<Spanned<T>>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de> + TomlTable> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + TomlTable> Visitor<'de> for TableVisitor<T> {
            type Value = Many<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "tables, each of which begins with [[{}]]", T::WORD)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Many<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Many)
            }

            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Many<T>, A::Error> {
                let word = T::WORD;
                Err(de::Error::custom(format_args!(
                    "there may be several: write [[{word}]], with two brackets, and not [{word}]"
                )))
            }
        }

        deserializer.deserialize_any(TableVisitor(PhantomData))
    }
}

/// The only table of its kind, written as `[word]`.
#[derive(Debug, Default)]
pub(super) struct One<T>(pub(super) T);

impl<'de, T: Deserialize<'de> + TomlTable> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + TomlTable> Visitor<'de> for TableVisitor<T> {
            type Value = One<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a table, which begins with [{}]", T::WORD)
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<One<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(table)).map(One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<One<T>, A::Error> {
                let word = T::WORD;
                Err(de::Error::custom(format_args!(
                    "there is one: write [{word}], with one bracket, and not [[{word}]]"
                )))
            }
        }

        deserializer.deserialize_any(TableVisitor(PhantomData))
    }
}
