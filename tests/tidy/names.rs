//! Which words the tree uses: how many types share a name, and which words its prose avoids.

use std::collections::BTreeMap;

use crate::tree::File;

/// The most types of one name.
const SAME_NAME_MAX: usize = 3;

/// The keywords before the name of a type.
const TYPES: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

/// Returns the name of the type that a line defines outside of any block, or none.
fn defined_type(line: &str) -> Option<&str> {
    let mut words =
        line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    let is_outermost = !line.starts_with(char::is_whitespace);
    let is_type = words.next().is_some_and(|word| TYPES.contains(&word));
    let name = words.next().filter(|_| is_outermost && is_type)?;
    name.split(|letter: char| !letter.is_alphanumeric()).next()
}

/// Returns the names that stand for too many types, with the files.
pub(crate) fn check_type_names(files: &[File]) -> Vec<String> {
    let mut types: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        for name in file.text.lines().filter_map(defined_type) {
            types.entry(name).or_default().push(&file.path);
        }
    }
    let is_overused = |(_, files): &(&str, Vec<&str>)| files.len() > SAME_NAME_MAX;
    let say = |(name, files): (&str, Vec<&str>)| {
        format!("{name} is the name of {} types: {}", files.len(), files.join(", "))
    };
    types.into_iter().filter(is_overused).map(say).collect()
}

/// Pronouns that leave open what a sentence is about: a thread, a task, a peer.
const VAGUE: [&str; 5] = ["nobody", "somebody", "whoever", "whom", "himself"];

/// Words that this project once had of its own, for which the field has a term.
const RETIRED: [&str; 14] = [
    "baton",
    "bells",
    "courtesy",
    "desk",
    "knock",
    "knocks",
    "leans",
    "patience",
    "penance",
    "rehearsal",
    "seat",
    "seats",
    "stakes",
    "unhosted",
];

/// Returns the lines of a file whose comments use a vague word, or one of this project's own for which there is a term.
pub(crate) fn check_prose(file: &File) -> Vec<String> {
    let is_vague = |word: &str| {
        let word = word.to_lowercase();
        [&VAGUE[..], &RETIRED[..]].concat().contains(&word.as_str())
    };
    let vague_word = |comment: &str| {
        let mut words = comment.split(|letter: char| !letter.is_alphanumeric());
        words.find(|word| is_vague(word)).map(str::to_owned)
    };
    let lines = (1..).zip(file.text.lines());
    let comments = lines.filter_map(|(number, line)| Some((number, line.split_once("//")?.1)));
    comments
        .filter_map(|(number, comment)| Some((number, vague_word(comment)?)))
        .map(|(number, word)| {
            file.problem(
                number,
                &format!("\"{word}\": name the thread, task or peer, or use the field's term"),
            )
        })
        .collect()
}
