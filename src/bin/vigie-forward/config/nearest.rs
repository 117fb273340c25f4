//! Suggestions for misspelt words.

/// The parser's words for what it expects of numbers, and their meanings.
const NUMBERS: [(&str, &str); 5] = [
    ("expected u8", " from 0 to 255"),
    ("expected u16", " from 0 to 65535"),
    ("expected u32", " from 0 to 4294967295"),
    ("expected u64", " from 0"),
    ("expected i64", ""),
];

/// Returns the advice to append to a parser's message.
pub(super) fn advice(message: &str) -> Option<String> {
    let unknown = message.strip_prefix("unknown field ");
    if let Some(rest) = unknown.or_else(|| message.strip_prefix("unknown variant ")) {
        // "`mod`, expected one of `a`, `b`": every second piece between backquotes is a word.
        let mut words = rest.split('`').skip(1).step_by(2);
        let given = words.next()?;
        return nearest(given, words).map(|word| format!("did you mean `{word}`?"));
    }
    if message == "duplicate field `connections_max`" {
        let problem = "`connections` and `connections_max` are one setting: remove `connections`";
        return Some(problem.to_owned());
    }
    if let Some((_, range)) = NUMBERS.iter().find(|(kind, _)| message.ends_with(kind)) {
        return Some(format!("write a whole number{range}, without quotes"));
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

/// Returns the number of letters that are wrong, missing, too many, or swapped with the next. Case, and `-` for `_`, do not count.
fn distance(one: &str, other: &str) -> usize {
    let plain = |word: &str| word.to_ascii_lowercase().replace('-', "_");
    strsim::osa_distance(&plain(one), &plain(other))
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
        assert!(advice("duplicate field `connections_max`").is_some());
        let message = "invalid value: integer `-1`, expected u32";
        let meant = "write a whole number from 0 to 4294967295, without quotes";
        assert_eq!(advice(message).as_deref(), Some(meant));
    }
}
