//! JSON, written by hand: the fields are few, and the runtime needs no other text format.

use std::{fmt::Write, panic::Location, time::Duration};

use crate::sync::Arc;

/// The version of the formats. It is raised when a field is removed or changes its meaning; readers must
/// accept unknown fields.
pub const FORMAT_VERSION: u32 = 2;

pub(crate) fn task(name: Option<&Arc<str>>, site: &Location<'_>) -> Object {
    let mut object = Object::new();
    match name {
        Some(name) => object.string("name", name),
        None => object.raw("name", "null"),
    }
    object.string("site", &site.to_string());
    object
}

pub(crate) fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    let items: Vec<_> = items.iter().map(show).collect();
    format!("[{}]", items.join(","))
}

pub(crate) struct Object(String);

impl Object {
    pub(crate) const fn new() -> Self {
        Self(String::new())
    }

    pub(crate) fn raw(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        quote(&mut self.0, name);
        self.0.push(':');
        self.0.push_str(value);
    }

    pub(crate) fn number(&mut self, name: &str, value: u64) {
        self.raw(name, &value.to_string());
    }

    pub(crate) fn nanos(&mut self, name: &str, time: Duration) {
        self.number(name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn string(&mut self, name: &str, value: &str) {
        self.raw(name, &text(value));
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Returns a JSON string.
pub(crate) fn text(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quote(&mut quoted, value);
    quoted
}

/// Appends a JSON string.
fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                write!(text, "\\u{:04x}", u32::from(c)).expect("a string takes everything");
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no task's name can break the line or the string that it stands in. Method: what JSON
    /// forbids in strings.
    #[test]
    fn names_are_quoted() {
        let mut object = Object::new();
        object.string("a", "line\nquote\" back\\ tab\t é \u{1b}[2J");
        object.number("b", 7);
        let expected = "{\"a\":\"line\\u000aquote\\\" back\\\\ tab\\u0009 é \\u001b[2J\",\"b\":7}";
        assert_eq!(object.end(), expected);
    }
}
