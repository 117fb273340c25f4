//! Tables of TOML, read so that each of their mistakes is found.

use std::{fmt, marker::PhantomData, mem, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, ValueDeserializer},
};

use super::{
    Check, ClientTls, Process, Retries, Route, TargetTls,
    mistakes::{Mistakes, Origin},
    nearest::{meant, worded},
};

/// A value with its place.
pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Values for required keys that are missing or wrong, so that the rest of their table is read and checked.
const STAND_INS: [(&str, &str); 11] = [
    ("listen", "'unix:/'"),
    ("to", "[]"),
    ("url", "'unix:/'"),
    ("names", "[]"),
    ("tls", "{}"),
    ("between", "['', '']"),
    ("interfaces", "[]"),
    ("inside", "[]"),
    ("outside", "''"),
    ("to_nic_above", "1"),
    ("to_host_below", "0"),
];

/// Reads a table. Whatever is wrong in it is reported and taken out, until the rest can be read; `None` if that is impossible.
pub(super) fn read<'i, T: Deserialize<'i>>(
    mut table: Value<'i>,
    origin: &mut Origin,
    mistakes: &mut Mistakes,
) -> Option<T> {
    loop {
        let error = match T::deserialize(ValueDeserializer::from(table.clone())) {
            Ok(read) => {
                note_places("", &table, origin);
                return Some(read);
            }
            Err(error) => error,
        };
        let place = error.span().unwrap_or_else(|| table.span());
        let missing = error.message().strip_prefix("missing field `");
        let missing = missing.and_then(|rest| rest.strip_suffix('`'));
        let path = match missing {
            Some(key) => stand_in("", &mut table, &place, key),
            None => take_out("", &mut table, &place),
        };
        // The key that was meant is not missing.
        if error.message().starts_with("unknown field ")
            && let (Some(path), Some(word)) = (&path, meant(error.message()))
        {
            let outer = path.rsplit_once('.').map_or("", |(outer, _)| outer);
            origin.note_wrong(&joined(outer, word));
        }
        // What was taken out is missing, and a list without some of its elements may be too short.
        let is_consequence = path.as_ref().is_some_and(|path| {
            let is_new = origin.note_wrong(path);
            missing.is_some() && !is_new || origin.has_lost_elements(path)
        });
        if !is_consequence {
            // serde takes a date for a table.
            let is_date = error.message().contains("$__toml_private_datetime")
                || error.message().starts_with("invalid type: map") && origin.is_number(&place);
            match is_date {
                true => mistakes.add_at(origin, place, "no setting is a date: put it in quotes"),
                false => mistakes.add_at(origin, place, worded(error.message())),
            }
        }
        if path.is_none() || mistakes.is_full() {
            return None;
        }
    }
}

fn joined(path: &str, key: impl fmt::Display) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// The path of a key; a single target is the first of a list.
fn path_of(outer: &str, key: &str, value: &Value<'_>) -> String {
    joined(outer, if key == "to" && value.get_ref().is_table() { "to.0" } else { key })
}

/// Notes the places of a value and of all in it; stand-ins have none.
fn note_places(path: &str, value: &Value<'_>, origin: &mut Origin) {
    if !value.span().is_empty() {
        origin.note_place(path, value.span());
    }
    match value.get_ref() {
        DeValue::Table(table) => {
            table.iter().for_each(|(key, value)| {
                note_places(&path_of(path, key.get_ref(), value), value, origin);
            });
        }
        DeValue::Array(list) => {
            let each = list.iter().enumerate();
            each.for_each(|(index, value)| note_places(&joined(path, index), value, origin));
        }
        _ => {}
    }
}

fn has_values(value: &Value<'_>) -> bool {
    matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_))
}

/// Takes the innermost key or element at this place out, and returns its path.
fn take_out(path: &str, value: &mut Value<'_>, place: &Range<usize>) -> Option<String> {
    // `[[a]]` is also the place of its first element.
    let is_here = value.span() == *place;
    match value.get_mut() {
        DeValue::Table(table) => {
            let mut inner = table.iter_mut().filter(|(_, value)| has_values(value));
            let found = inner.find_map(|(key, value)| {
                take_out(&path_of(path, key.get_ref(), value), value, place)
            });
            found.or_else(|| {
                let is_here = |key: &Spanned<_>, value: &Value<'_>| {
                    key.span() == *place || value.span() == *place
                };
                let key = table.iter().find(|(key, value)| is_here(key, value))?.0.clone();
                table.remove(&key).map(|_| joined(path, key))
            })
        }
        DeValue::Array(list) => {
            let mut inner = list.iter_mut().enumerate().filter(|(_, value)| has_values(value));
            let found = inner.find_map(|(at, value)| take_out(&joined(path, at), value, place));
            found.or_else(|| {
                let at = list.iter().position(|value| value.span() == *place && !is_here)?;
                let mut all: Vec<_> = mem::replace(list, DeArray::new()).into_iter().collect();
                all.remove(at);
                *list = all.into_iter().collect();
                Some(joined(path, '*'))
            })
        }
        _ => None,
    }
}

/// Gives the table at this place a value for its missing key, and returns the path of that.
fn stand_in<'i>(
    path: &str,
    value: &mut Value<'i>,
    place: &Range<usize>,
    key: &str,
) -> Option<String> {
    let is_here = value.span() == *place;
    match value.get_mut() {
        DeValue::Table(table) if is_here => put(table, key).map(|()| joined(path, key)),
        DeValue::Table(table) => table.iter_mut().find_map(|(name, value)| {
            stand_in(&path_of(path, name.get_ref(), value), value, place, key)
        }),
        DeValue::Array(list) => {
            let mut all = list.iter_mut().enumerate();
            all.find_map(|(at, value)| stand_in(&joined(path, at), value, place, key))
        }
        _ => None,
    }
}

fn put(table: &mut DeTable<'_>, key: &str) -> Option<()> {
    let (key, text) = STAND_INS.into_iter().find(|(name, _)| *name == key)?;
    let value = DeValue::parse(text).ok()?.into_inner();
    table.insert(Spanned::new(0..0, key.into()), Spanned::new(0..0, value)).is_none().then_some(())
}

/// Returns the tables that are each written as `[[word]]`, or what is wrong.
pub(super) fn many<'i>(word: &str, value: DeValue<'i>) -> Result<DeArray<'i>, String> {
    match value {
        DeValue::Array(list) if list.iter().all(|one| one.get_ref().is_table()) => Ok(list),
        DeValue::Table(_) => Err(format!(
            "there may be several: write [[{word}]], with two brackets, and not [{word}]"
        )),
        _ => Err(format!("`{word}` is for tables, each of which begins with [[{word}]]")),
    }
}

/// Settings that are one table of TOML.
pub(super) trait TomlTable {
    /// What is expected where they are.
    const EXPECTED: &'static str;
}

/// A table, and no list: serde's own would take one for the values of the fields.
#[derive(Debug, Default)]
pub(super) struct One<T>(pub(super) T);

impl<'de, T: Deserialize<'de> + TomlTable> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + TomlTable> Visitor<'de> for TableVisitor<T> {
            type Value = One<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<One<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(table)).map(One)
            }
        }

        deserializer.deserialize_any(TableVisitor(PhantomData))
    }
}

macro_rules! tables {
    ($($type:ty: $expected:literal;)*) => {$(
        impl TomlTable for $type {
            const EXPECTED: &'static str = $expected;
        }
    )*};
}

pub(super) use tables;

tables! {
    Process: "one table: write [process], with one bracket";
    Check: "a table, as in check = { every = \"2s\" }; check = {} is one with all defaults";
    Retries: "a table, as in retries = { percent = 20, min_per_second = 10 }";
    ClientTls: "a table, as in tls = { certificate = \"chain.pem\", key = \"key.pem\" }";
    TargetTls: "a table, as in to_tls = {} or to_tls = { server_name = \"web.example\" }";
    Route: "tables, each of which begins with [[relay.route]]";
}
