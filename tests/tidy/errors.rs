//! Errors show their cause: who prints only the error must learn what happened.

use crate::tree::File;

/// Returns the variants of errors by `thiserror` that have a cause and do not display it. A cause that may be missing is left out.
pub(crate) fn check_causes(file: &File) -> Vec<String> {
    let mut places = file.text.match_indices("#[error(").peekable();
    let mut problems = Vec::new();
    while let Some((begin, _)) = places.next() {
        let end = places.peek().map_or(file.text.len(), |next| next.0);
        // The attribute, and the variant up to the end of its fields or of the enum.
        let rest = &file.text[begin..end];
        let rest = rest.split_once("\n}").map_or(rest, |(variant, _)| variant);
        let (message, variant) = rest.split_once(")]").unwrap_or((rest, ""));
        let has_cause = variant.contains("#[source]") || variant.contains("#[from]");
        let may_lack = variant.contains("source: Option<");
        let is_shown = ["transparent", "{source}", "{error}", "{0}"]
            .iter()
            .any(|shown| message.contains(shown));
        if has_cause && !may_lack && !is_shown {
            let line = 1 + file.text[..begin].matches('\n').count();
            problems.push(file.problem(
                line,
                "the error has a cause that its text does not show: add `{source}` or `{0}`",
            ));
        }
    }
    problems
}
