//! Tables of TOML, read so that each of their mistakes is found.

use std::{borrow::Cow, collections::BTreeSet, fmt, marker::PhantomData, mem, ops::Range};

use clap::ValueEnum;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, ValueDeserializer},
};

use super::{
    BalanceChoice, Check, ClientTls, FrameMode, Inside, LengthForm, LogChoice, PathChoice, Process,
    Publish, RelayMode, Retries, Route, SegmentsChoice, TargetTls, TargetUri, WaitMode,
    mistakes::{Mistakes, Origin},
    nearest::{EXPECTED, WANTED_WORD, meant, worded},
};

/// A value with its place.
pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Values for required keys that are missing or wrong, so that the rest of their table is read and checked.
const STAND_INS: [(&str, &str); 11] = [
    ("listen", "'unix:/u'"),
    ("to", "[]"),
    ("url", "'unix:/u'"),
    ("names", "[]"),
    ("tls", "{}"),
    ("between", "['', '']"),
    ("interfaces", "[]"),
    ("inside", "[]"),
    ("outside", "''"),
    ("to_nic_above", "1"),
    ("to_host_below", "1"),
];

/// Reads a table. Whatever is wrong in it is reported and taken out, until the rest can be read; `None` if that is impossible.
pub(super) fn read<'i, T: Deserialize<'i>>(
    mut table: Value<'i>,
    origin: &mut Origin,
    mistakes: &mut Mistakes,
) -> Option<T> {
    let read = read_at("", &mut table, origin, mistakes)?;
    note_places("", &table, origin);
    Some(read)
}

/// As [`read`], of the value with this path, which is left as it could be read.
///
/// The value is read again for each known key with a wrong value. There are few of these: all unknown keys of a table are taken out at
/// once, and once a list has a wrong element, each of its elements is read alone.
fn read_at<'i, T: Deserialize<'i>>(
    path: &str,
    value: &mut Value<'i>,
    origin: &mut Origin,
    mistakes: &mut Mistakes,
) -> Option<T> {
    let mut lists = BTreeSet::new();
    loop {
        let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        let place = error.span().unwrap_or_else(|| value.span());
        let is_out = read_elements(path, value, &place, (&mut lists, origin, mistakes))
            || take_out_unknown(path, value, (&place, error.message()), (origin, mistakes))
            || take_out_wrong(path, value, (&place, error.message()), (origin, mistakes));
        if !is_out || mistakes.is_full() {
            return None;
        }
    }
}

/// Reports a mistake, and takes out the value at its place, or puts one there that is missing. Returns false if that is impossible.
fn take_out_wrong(
    path: &str,
    value: &mut Value<'_>,
    (place, message): (&Range<usize>, &str),
    (origin, mistakes): (&mut Origin, &mut Mistakes),
) -> bool {
    let missing = message.strip_prefix("missing field `");
    let missing = missing.and_then(|rest| rest.strip_suffix('`'));
    let path = match missing {
        Some(key) => stand_in(path, value, place, key),
        None => take_out(path, value, place),
    };
    // What was taken out is missing, and a list without some of its elements may be too short.
    let is_consequence = path.as_ref().is_some_and(|path| {
        let is_new = origin.note_wrong(path);
        missing.is_some() && !is_new || origin.has_lost_elements(path)
    });
    if !is_consequence {
        // serde takes a date for a table.
        let is_date = message.contains("$__toml_private_datetime")
            || message.starts_with("invalid type: map") && origin.is_number(place);
        match is_date {
            true => {
                mistakes.add_at(origin, place.clone(), "no setting is a date: put it in quotes")
            }
            false => {
                let words = path.as_deref().filter(|_| message == WANTED_WORD).and_then(words_of);
                let words = words.map_or_else(String::new, |words| format!(": {words}"));
                mistakes.add_at(origin, place.clone(), worded(message) + &words);
            }
        }
    }
    path.is_some()
}

/// Returns the words that the key with this path can have.
fn words_of(path: &str) -> Option<String> {
    fn listed<T: ValueEnum>() -> String {
        let words = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        words.map(|word| format!("\"{}\"", word.get_name())).collect::<Vec<_>>().join(", ")
    }
    Some(match path.rsplit('.').next()? {
        "log" => listed::<LogChoice>(),
        "path" => listed::<PathChoice>(),
        "waiting" => listed::<WaitMode>(),
        "segments" => listed::<SegmentsChoice>(),
        "mode" => listed::<RelayMode>(),
        "balance" => listed::<BalanceChoice>(),
        "framed" => listed::<LengthForm>(),
        "frame_mode" => listed::<FrameMode>(),
        _ => return None,
    })
}

/// Finds the table with an unknown key at this place, and reports and removes all its unknown keys. Returns false if no table has one there.
fn take_out_unknown(
    path: &str,
    value: &mut Value<'_>,
    (place, message): (&Range<usize>, &str),
    (origin, mistakes): (&mut Origin, &mut Mistakes),
) -> bool {
    if !message.starts_with("unknown field ") {
        return false;
    }
    let Some((path, table)) = table_with(path, value, place) else { return false };
    let (_, expected) = message.rsplit_once(EXPECTED).unwrap_or_default();
    let known: BTreeSet<_> = expected.split('`').skip(1).step_by(2).collect();
    let is_unknown = |key: &Spanned<Cow<'_, str>>| !known.contains(key.get_ref().as_ref());
    let unknown: Vec<_> = table.keys().filter(|key| is_unknown(key)).cloned().collect();
    for key in unknown {
        if mistakes.is_full() {
            break;
        }
        table.remove(&key);
        let message = format!("unknown field `{}`{EXPECTED}{expected}", key.get_ref());
        // The key that was meant is not missing.
        if let Some(word) = meant(&message) {
            origin.note_wrong(&joined(&path, word));
        }
        origin.note_wrong(&joined(&path, key.get_ref()));
        mistakes.add_at(origin, key.span(), worded(&message));
    }
    true
}

/// Finds the table with a key at this place, and its path.
fn table_with<'a, 'i>(
    path: &str,
    value: &'a mut Value<'i>,
    place: &Range<usize>,
) -> Option<(String, &'a mut DeTable<'i>)> {
    let has_key = |table: &DeTable<'_>| table.keys().any(|key| key.span() == *place);
    let is_here = value.get_ref().as_table().is_some_and(has_key);
    match value.get_mut() {
        DeValue::Table(table) => {
            if is_here {
                return Some((path.to_owned(), table));
            }
            let mut all = table.iter_mut();
            all.find_map(|(key, value)| {
                table_with(&path_of(path, key.get_ref(), value), value, place)
            })
        }
        DeValue::Array(list) => {
            let mut all = list.iter_mut().enumerate();
            all.find_map(|(at, value)| table_with(&joined(path, at), value, place))
        }
        _ => None,
    }
}

/// Reads one element of a list. Returns false if that is impossible.
type ReadElement<'i> = fn(&str, &mut Value<'i>, &mut Origin, &mut Mistakes) -> bool;

/// Returns how the elements of a list are read.
fn element_reader<'i>(list: &str) -> Option<ReadElement<'i>> {
    fn reader<'i, T: Deserialize<'i>>() -> ReadElement<'i> {
        |path, value, origin, mistakes| read_at::<T>(path, value, origin, mistakes).is_some()
    }
    Some(match list {
        "to" => reader::<TargetUri>(),
        "proxy_from" | "allow" | "deny" => reader::<super::Range>(),
        "from" => reader::<Inside>(),
        "publish" => reader::<Publish>(),
        "names" | "alpn" | "inside" | "interfaces" | "between" => reader::<String>(),
        "route" => reader::<One<Route>>(),
        _ => return None,
    })
}

/// Reads each element of the list that has this place in one, and takes out those that are wrong. Returns false if there is no such list,
/// or it is among `lists`, which were read before.
fn read_elements(
    path: &str,
    value: &mut Value<'_>,
    place: &Range<usize>,
    (lists, origin, mistakes): (&mut BTreeSet<String>, &mut Origin, &mut Mistakes),
) -> bool {
    let DeValue::Table(table) = value.get_mut() else { return false };
    for (key, value) in table.iter_mut() {
        let path = path_of(path, key.get_ref(), value);
        if let DeValue::Array(list) = value.get_mut() {
            if let Some(read) = element_reader(key.get_ref())
                && list.iter().any(|element| has_place(element, place))
                && lists.insert(path.clone())
            {
                let mut right = DeArray::new();
                for mut element in mem::replace(list, DeArray::new()) {
                    if mistakes.is_full() {
                        break;
                    }
                    if read(&joined(&path, right.len()), &mut element, origin, mistakes) {
                        right.push(element);
                    } else {
                        origin.note_wrong(&joined(&path, '*'));
                    }
                }
                *list = right;
                return true;
            }
        } else if read_elements(&path, value, place, (&mut *lists, &mut *origin, &mut *mistakes)) {
            return true;
        }
    }
    false
}

/// Returns whether a value, or a key or value in it, is at this place.
fn has_place(value: &Value<'_>, place: &Range<usize>) -> bool {
    value.span() == *place
        || match value.get_ref() {
            DeValue::Table(table) => {
                table.iter().any(|(key, value)| key.span() == *place || has_place(value, place))
            }
            DeValue::Array(list) => list.iter().any(|value| has_place(value, place)),
            _ => false,
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
