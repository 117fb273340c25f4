//! What is wrong with a configuration: all of it, with the place of each mistake in the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, iter,
    ops::Range,
    sync::Arc,
};

/// The most mistakes that are reported; reading ends there.
const MISTAKES_MAX: usize = 100;

/// The longest line that is shown.
const LINE_BYTES_MAX: usize = 500;

/// The longest name of a flow and the longest text of a mistake, in characters; of longer ones, both ends are shown.
const NAME_LENGTH_MAX: usize = 64;
const TEXT_LENGTH_MAX: usize = 1000;

/// A configuration file.
#[derive(Debug)]
pub(super) struct Source {
    file: String,
    pub(super) text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// The place of a flow, or of the settings of the process, in its file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// `None`: the command line.
    source: Option<Arc<Source>>,
    /// The words before each message: "flow `web`: ".
    subject: String,
    /// The places of keys and of elements of lists, by path: `check.every`, `to.1`. The table itself is "".
    places: BTreeMap<String, Range<usize>>,
    /// The paths of keys that are missing, or whose values cannot be read; `to.*` is a list without some of its elements.
    wrong: BTreeSet<String>,
}

impl Origin {
    /// The origin of a flow that is in no file.
    pub(crate) fn of_flow(name: &str) -> Self {
        Self { subject: format!("flow `{}`: ", plain(name, NAME_LENGTH_MAX)), ..Self::default() }
    }

    pub(super) fn in_file(self, source: &Arc<Source>) -> Self {
        Self { source: Some(Arc::clone(source)), ..self }
    }

    pub(super) fn note_place(&mut self, path: &str, place: Range<usize>) {
        self.places.insert(path.to_owned(), place);
    }

    /// Returns false if it was noted before.
    pub(super) fn note_wrong(&mut self, path: &str) -> bool {
        self.wrong.insert(path.to_owned())
    }

    pub(super) fn has_lost_elements(&self, list: &str) -> bool {
        self.wrong.contains(&format!("{list}.*"))
    }

    /// Returns whether the value of this key, or a part of it, is not what the file says.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        let is_in = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.wrong.iter().any(|wrong| is_in(wrong, key) || is_in(key, wrong))
    }

    /// Returns whether a digit is at this place.
    pub(super) fn is_number(&self, place: &Range<usize>) -> bool {
        let text = self.source.as_ref().and_then(|source| source.text.as_bytes().get(place.start));
        text.is_some_and(u8::is_ascii_digit)
    }

    /// Returns whether the file has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Returns the place of a key, or of the innermost table that lacks it.
    fn place(&self, mut key: &str) -> Option<Range<usize>> {
        loop {
            match self.places.get(key) {
                Some(place) => return Some(place.clone()),
                None if key.is_empty() => return None,
                None => key = key.rsplit_once('.').map_or("", |(outer, _)| outer),
            }
        }
    }

    /// Returns a message about a key ("": the table), with its place.
    pub(crate) fn describe(&self, key: &str, problem: &str) -> Located {
        self.at(self.place(key), problem)
    }

    fn at(&self, place: Option<Range<usize>>, problem: &str) -> Located {
        let said = format!("{}{}", self.subject, plain(problem, TEXT_LENGTH_MAX));
        match (&self.source, place) {
            (Some(source), Some(place)) => source.at(&place, &said),
            (Some(source), None) => {
                Located { text: format!("{}: {said}", source.file), ..Located::default() }
            }
            (None, _) => Located { text: said, ..Located::default() },
        }
    }
}

/// Returns a text on one line, and without its middle if it is long.
fn plain(text: &str, length_max: usize) -> String {
    let half = length_max / 2;
    let head = text.char_indices().nth(half).map_or(text.len(), |(at, _)| at);
    let tail = text.char_indices().nth_back(half - 1).map_or(0, |(at, _)| at);
    let parts = if head < tail { [&text[..head], " ... ", &text[tail..]] } else { [text, "", ""] };
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    parts.into_iter().flat_map(str::chars).map(escaped).collect()
}

impl Source {
    pub(super) fn new(file: String, text: String) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        let lines = iter::once(0).chain(ends).collect();
        Self { file, text, lines }
    }

    fn at(&self, place: &Range<usize>, said: &str) -> Located {
        let before = self.text.get(..place.start).unwrap_or(&self.text);
        let line = self.lines.partition_point(|start| *start <= before.len());
        let start = self.lines[line - 1];
        let indent = &before[start..];
        let column = indent.chars().count() + 1;
        let content = self.text[start..].lines().next().unwrap_or_default();
        let marked = content.get(indent.len()..).unwrap_or_default();
        let count = marked.char_indices().take_while(|(at, _)| *at < place.len()).count().max(1);
        let margin = " ".repeat(line.to_string().len());
        let indent: String =
            indent.chars().map(|letter| if letter == '\t' { '\t' } else { ' ' }).collect();
        let mark = if content.len() > LINE_BYTES_MAX {
            String::new()
        } else {
            format!("\n{margin} |\n{line} | {content}\n{margin} | {indent}{}", "^".repeat(count))
        };
        let text = format!("{}, line {line}, column {column}: {said}", self.file);
        Located { offset: place.start, text, mark }
    }
}

/// A message with its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Located {
    offset: usize,
    /// On one line.
    pub(crate) text: String,
    /// The line of the file, with a mark below; empty if there is none, or it is long.
    mark: String,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, self.mark)
    }
}

/// All that is wrong with a configuration.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(Vec<Located>);

impl Mistakes {
    /// Adds a mistake at the first of `keys`. Says nothing if one of them is wrong by itself, since the mistake may follow from that, or if something
    /// was said of the same value.
    pub(crate) fn add(&mut self, origin: &Origin, keys: &[&str], problem: impl AsRef<str>) {
        if self.is_full() || keys.iter().any(|key| origin.is_wrong(key)) {
            return;
        }
        let place = origin.place(keys.first().copied().unwrap_or_default());
        // Of a flow as a whole, several things may be wrong.
        let value = place.as_ref().filter(|place| origin.places.get("") != Some(place));
        if value.is_none_or(|value| self.0.iter().all(|one| one.offset != value.start)) {
            self.0.push(origin.at(place, problem.as_ref()));
        }
    }

    pub(super) fn add_at(
        &mut self,
        origin: &Origin,
        place: Range<usize>,
        problem: impl AsRef<str>,
    ) {
        if !self.is_full() {
            self.0.push(origin.at(Some(place), problem.as_ref()));
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MISTAKES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns them in the order of the file, if there are any.
    pub(crate) fn into_result(mut self) -> Result<(), Self> {
        self.0.sort_by_key(|mistake| mistake.offset);
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    pub(crate) fn list(&self) -> &[Located] {
        &self.0
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 | 1 => {}
            MISTAKES_MAX => writeln!(f, "{MISTAKES_MAX} errors, and there may be more:")?,
            count => writeln!(f, "{count} errors:")?,
        }
        let all: Vec<_> = self.0.iter().map(Located::to_string).collect();
        f.write_str(&all.join("\n"))
    }
}
