//! The lines of PMI-1: `cmd=NAME key=value ...`, ended by a newline. Nothing here does I/O, or panics on what
//! a launcher sends.

use std::fmt;

use super::PmiError;

/// The most bytes of a line that this side sends or asks for, including its newline. Slurm's launcher takes a
/// longer line for two, and kills the job.
pub(super) const LINE_BYTES_MAX: usize = 1023;

/// The most bytes of a line that this side accepts, including its newline.
const ANSWER_BYTES_MAX: usize = 4096;

/// The most characters of a launcher's text that an error repeats.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// Splits a stream into lines. Holds at most one line beyond what it was fed.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// The number of `bytes` that were already returned.
    taken: usize,
}

impl Lines {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole line without its newline; `None`: more bytes are needed.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>, PmiError> {
        let rest = &self.bytes[self.taken..];
        let length = rest.iter().position(|&byte| byte == b'\n');
        if length.unwrap_or(rest.len()) >= ANSWER_BYTES_MAX {
            return Err(PmiError::LineTooLong { limit: ANSWER_BYTES_MAX });
        }
        let Some(length) = length else { return Ok(None) };
        self.taken += length + 1;
        Ok(Some(&rest[..length]))
    }
}

/// A launcher's answer.
pub(super) struct PmiResponse<'a> {
    command: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> PmiResponse<'a> {
    /// Parses a line.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, PmiError> {
        let text = std::str::from_utf8(line).map_err(|_| PmiError::NotText)?;
        let is_text = |character: char| character == ' ' || character.is_ascii_graphic();
        if !text.chars().all(is_text) {
            return Err(PmiError::NotText);
        }
        let mut fields = text.split(' ').filter(|field| !field.is_empty());
        let command = fields.next().and_then(|field| field.strip_prefix("cmd="));
        let command = command.ok_or_else(|| PmiError::NoCommand { line: shown(text) })?;
        // A word without `=` belongs to the message before it, which launchers do not quote.
        let fields = fields.filter_map(|field| field.split_once('=')).collect();
        Ok(Self { command, fields })
    }

    /// Checks that this answers `command`, and that the command succeeded.
    pub(super) fn expect(&self, command: &'static str) -> Result<(), PmiError> {
        if self.command != command {
            let found = shown(self.command);
            return Err(PmiError::Unexpected { expected: command, found });
        }
        match self.result()? {
            0 => Ok(()),
            result => {
                let message = shown(self.field("msg").unwrap_or("it does not say why"));
                Err(PmiError::Failed { command, result, message })
            }
        }
    }

    /// Checks that this answers `command`. Returns whether the command succeeded.
    pub(super) fn is_success(&self, command: &'static str) -> Result<bool, PmiError> {
        match self.expect(command) {
            Err(PmiError::Failed { .. }) => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    /// Returns a required field.
    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, PmiError> {
        self.field(field).ok_or_else(|| PmiError::NoField { command: shown(self.command), field })
    }

    /// Returns a required field as a number.
    pub(super) fn number(&self, field: &'static str) -> Result<usize, PmiError> {
        let text = self.text(field)?;
        text.parse().map_err(|_| PmiError::BadField { field, text: shown(text) })
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|&(_, text)| text)
    }

    /// Returns the result code; an answer without one means success.
    fn result(&self) -> Result<i64, PmiError> {
        let text = self.field("rc").unwrap_or("0");
        text.parse().map_err(|_| PmiError::BadField { field: "rc", text: shown(text) })
    }
}

impl fmt::Debug for PmiResponse<'_> {
    /// Omits the fields, one of which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("command", &self.command).finish_non_exhaustive()
    }
}

/// Cuts a launcher's text to what an error may repeat.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS_MAX).collect()
}

/// Encodes a value as text: its length, a full stop, its bytes, in hexadecimal.
pub(super) fn encode(value: &[u8]) -> String {
    use fmt::Write;
    let mut text = format!("{:x}.", value.len());
    for byte in value {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A value that arrives as pieces of its text.
#[derive(Debug, Default)]
pub(super) struct ValueParts {
    text: String,
    pub(super) count: u32,
}

impl ValueParts {
    /// Adds the next piece. Returns the value if this was the last.
    pub(super) fn add(
        &mut self,
        piece: &str,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, PmiError> {
        let bad = || PmiError::BadField { field: "value", text: "no value of a rank".to_owned() };
        self.text.push_str(piece);
        self.count += 1;
        let (length, digits) = self.text.split_once('.').ok_or_else(bad)?;
        let length = usize::from_str_radix(length, 16).map_err(|_| bad())?;
        if length > bytes_max || digits.len() > 2 * length {
            return Err(bad());
        }
        if digits.len() < 2 * length {
            return if piece.is_empty() { Err(bad()) } else { Ok(None) };
        }
        let pairs = digits.as_bytes().chunks_exact(2).map(|pair| {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
            Some(digit(pair[0])? << 4 | digit(pair[1])?)
        });
        pairs.collect::<Option<_>>().map(Some).ok_or_else(bad)
    }
}
