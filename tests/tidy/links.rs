//! Links of the documents: to files of the tree, and to headings in them.

use std::collections::BTreeSet;

use crate::tree::{File, lines};

/// Returns the lines that are not inside a fenced block, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    lines(text).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// Returns the names by which links reach the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let name = |heading: &str| {
        let plain = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = plain.chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
        kept.map(|one| if one == ' ' { '-' } else { one }).collect()
    };
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| name(line)).collect()
}

/// Returns the targets of the links `[text](target)` of a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// Returns the path from the root of the tree that `target` means in the file at `path`.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    if !target.is_empty() {
        parts.pop();
    }
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the links of a document that lead nowhere. `exists` knows files that are no documents, and folders. Paths of
/// Rust's items, which rustdoc resolves, are left to it.
pub(crate) fn check_links(
    document: &File,
    documents: &[File],
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let problem = |target: &str| {
        let is_foreign = target.contains("://") || target.contains("::");
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = resolve(&document.path, file);
        let found = documents.iter().find(|one| one.path == path);
        let has_heading =
            heading.is_empty() || found.is_none_or(|found| anchors(&found.text).contains(heading));
        let what = match (is_foreign, found.is_some() || exists(&path), has_heading) {
            (true, ..) | (_, true, true) => return None,
            (_, false, _) => "no file",
            (_, true, false) => "no heading",
        };
        Some(format!("`{target}` is {what}"))
    };
    prose(&document.text)
        .flat_map(|(number, line)| targets(line).map(move |target| (number, target)))
        .filter_map(|(number, target)| Some(document.problem(number, &problem(target)?)))
        .collect()
}
