//! Suggestions for misspelt words.

/// Returns the advice to append to a parser's message.
pub(super) fn advice(message: &str) -> Option<String> {
    let unknown = message.strip_prefix("unknown field ");
    if let Some(rest) = unknown.or_else(|| message.strip_prefix("unknown variant ")) {
        // "`mod`, expected one of `a`, `b`": every second piece between backquotes is a word.
        let mut words = rest.split('`').skip(1).step_by(2);
        let given = words.next()?;
        return nearest(given, words).map(|word| format!("did you mean `{word}`?"));
    }
    let is_one = message.starts_with("invalid type: string") && message.ends_with("a sequence");
    is_one.then(|| "put it in brackets, as a list: [\"...\"]".to_owned())
}

/// Returns the word most similar to the given one, unless all of them are quite different.
fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong.
    let most = given.chars().count().div_ceil(3);
    let ranked = words.map(|word| (distance(given, word), word));
    ranked
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns how many letters must be inserted, deleted, replaced or swapped with their neighbour to turn one word into
/// the other. `-` and `_` count as equal, as do upper and lower case.
fn distance(one: &str, other: &str) -> usize {
    let letters = |word: &str| -> Vec<char> {
        word.chars().map(|one| if one == '-' { '_' } else { one.to_ascii_lowercase() }).collect()
    };
    let (one, other) = (letters(one), letters(other));
    // Rows of the usual table: the distances of prefixes. The one before last is for swaps.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, against) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != against);
            let mut least = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            let is_swapped =
                row > 0 && column > 0 && *letter == other[column - 1] && *against == one[row - 1];
            if is_swapped {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: common typos are recognised, and nonsense gets no suggestion. Method: one of each kind.
    #[test]
    fn slips_are_understood() {
        let words = ["listen", "to", "mode", "idle", "connect", "proxy_send", "proxy_from"];
        for (given, meant) in [
            ("mod", Some("mode")),
            ("lisetn", Some("listen")),
            ("Listen", Some("listen")),
            ("proxy-send", Some("proxy_send")),
            ("conect", Some("connect")),
            ("t", Some("to")),
            ("speed", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, words.into_iter()), meant, "{given}");
        }
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    /// Goal: advice is given where there is some. Method: messages as the parser writes them.
    #[test]
    fn messages_get_their_advice() {
        let message = "unknown field `mod`, expected one of `name`, `mode`";
        assert_eq!(advice(message).as_deref(), Some("did you mean `mode`?"));
        let message = "unknown variant `Copy`, expected `copy` or `splice`";
        assert_eq!(advice(message).as_deref(), Some("did you mean `copy`?"));
        assert_eq!(advice("unknown field `"), None);
        assert_eq!(advice("missing field `to`"), None);
        assert!(advice("invalid type: string \"a\", expected a sequence").is_some());
    }
}
