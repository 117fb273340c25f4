//! Suggestions for misspelt words.

/// What the parser writes before what it expects.
pub(super) const EXPECTED: &str = ", expected ";

/// What the parser writes where one of several words is wanted.
pub(super) const WANTED_WORD: &str = "wanted string or table";

/// The longest word that is compared with others.
const GIVEN_BYTES_MAX: usize = 64;

/// Words of HAProxy, nginx, Envoy, iptables and nftables, and ours.
const FOREIGN: [(&str, &str); 55] = [
    ("leastconn", "least-connections"),
    ("least_conn", "least-connections"),
    ("least_request", "least-connections"),
    ("roundrobin", "round-robin"),
    ("round_robin", "round-robin"),
    ("static_rr", "round-robin"),
    ("wrr", "round-robin"),
    ("ip_hash", "hash"),
    ("source", "hash"),
    ("ring_hash", "hash"),
    ("maglev", "hash"),
    ("random", "random-two"),
    ("power_of_two", "random-two"),
    ("p2c", "random-two"),
    ("pick_first", "first"),
    ("snat", "nat"),
    ("dnat", "nat"),
    ("masquerade", "nat"),
    ("snat", "address"),
    ("to_source", "address"),
    ("public", "address"),
    ("external", "address"),
    ("dnat", "publish"),
    ("to_destination", "publish"),
    ("redirect", "publish"),
    ("forward", "publish"),
    ("source", "from"),
    ("src", "from"),
    ("in_interface", "inside"),
    ("iifname", "inside"),
    ("out_interface", "outside"),
    ("oifname", "outside"),
    ("masquerade", "address"),
    ("maxconn", "connections_max"),
    ("max_connections", "connections_max"),
    ("bind", "listen"),
    ("upstream", "to"),
    ("upstream", "relay"),
    ("server", "to"),
    ("server", "relay"),
    ("backend", "to"),
    ("backend", "relay"),
    ("frontend", "relay"),
    ("send_proxy", "proxy_send"),
    ("accept_proxy", "proxy_from"),
    ("timeout_connect", "connect"),
    ("timeout_client", "idle"),
    ("timeout_server", "idle"),
    ("ssl_certificate", "tls"),
    ("ssl_certificate", "certificate"),
    ("ssl_certificate_key", "tls"),
    ("ssl_certificate_key", "key"),
    ("interval", "every"),
    ("inter", "every"),
    ("mode", "path"),
];

/// Returns a parser's message with advice in place of what was expected, if there is any.
pub(super) fn worded(message: &str) -> String {
    let said = message.rsplit_once(EXPECTED).map_or(message, |(said, _)| said);
    advice(message).map_or_else(|| message.to_owned(), |advice| format!("{said}: {advice}"))
}

fn advice(message: &str) -> Option<String> {
    if let Some(word) = meant(message) {
        return Some(format!("did you mean `{word}`?"));
    }
    if message == WANTED_WORD {
        return Some("write one of its words in quotes, without brackets".to_owned());
    }
    let (given, expected) = message.strip_prefix("invalid type: ")?.rsplit_once(EXPECTED)?;
    let advice = match (given, expected) {
        ("sequence", "a string" | "path string" | "a boolean") => {
            "write one value, without brackets"
        }
        (_, "a string" | "path string") => "write a value in quotes",
        (_, "a boolean") => "write true or false, without quotes",
        ("map", "a sequence") => {
            "it is a list: write it in brackets, and tables with two, as in [[relay.route]]"
        }
        (_, "a sequence") => "put it in brackets, as a list: [\"...\"]",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Returns the known word that the unknown one of a parser's message probably stands for.
pub(super) fn meant(message: &str) -> Option<&str> {
    let mut unknown = ["unknown field `", "unknown variant `", "unknown table `"].into_iter();
    let rest = unknown.find_map(|words| message.strip_prefix(words))?;
    // "mod`, expected one of `a`, `b`": every second piece between backquotes is a word.
    let (given, words) = rest.rsplit_once(EXPECTED)?;
    nearest(given.strip_suffix('`')?, words.split('`').skip(1).step_by(2))
}

/// Returns the word most similar to the given one, unless all of them are quite different.
fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if given.len() > GIVEN_BYTES_MAX {
        return None;
    }
    let mut foreign = FOREIGN.iter().filter(|(word, _)| distance(given, word) == 0);
    if let Some(word) = foreign.find_map(|(_, own)| words.clone().find(|word| word == own)) {
        return Some(word);
    }
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

    /// Goal: words of other programs lead to ours. Method: those of HAProxy, nginx and Envoy for policies, and of iptables and nftables for translations.
    #[test]
    fn words_of_other_programs_are_known() {
        let words = ["first", "round-robin", "least-connections", "random-two", "hash"];
        for (given, meant) in [
            ("leastconn", "least-connections"),
            ("least_conn", "least-connections"),
            ("LEAST_REQUEST", "least-connections"),
            ("roundrobin", "round-robin"),
            ("round_robin", "round-robin"),
            ("ip_hash", "hash"),
            ("source", "hash"),
            ("random", "random-two"),
            ("power_of_two", "random-two"),
        ] {
            assert_eq!(nearest(given, words.into_iter()), Some(meant), "{given}");
            assert_eq!(nearest(given, ["listen"].into_iter()), None, "{given}");
        }
        let tables = ["process", "relay", "l2", "l3", "nat"];
        let keys = ["name", "inside", "outside", "address", "from", "publish", "state"];
        for (given, table, key) in [
            ("snat", Some("nat"), Some("address")),
            ("dnat", Some("nat"), Some("publish")),
            ("masquerade", Some("nat"), Some("address")),
            ("to-source", None, Some("address")),
            ("source", None, Some("from")),
            ("out-interface", None, Some("outside")),
        ] {
            assert_eq!(nearest(given, tables.into_iter()), table, "{given}");
            assert_eq!(nearest(given, keys.into_iter()), key, "{given}");
        }
        let keys = ["listen", "to", "check", "connections_max", "connect", "proxy_send", "tls"];
        let more = ["certificate", "key"];
        for (given, keys, meant) in [
            ("maxconn", &keys[..], "connections_max"),
            ("bind", &keys, "listen"),
            ("upstream", &keys, "to"),
            ("server", &keys, "to"),
            ("server", &tables, "relay"),
            ("send-proxy", &keys, "proxy_send"),
            ("timeout_connect", &keys, "connect"),
            ("ssl_certificate", &keys, "tls"),
            ("ssl_certificate", &more, "certificate"),
            ("interval", &["rise", "every"], "every"),
            ("mode", &["inside", "path"], "path"),
        ] {
            assert_eq!(nearest(given, keys.iter().copied()), Some(meant), "{given}");
        }
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
        let message = "unknown variant `slice`, expected `copy` or `splice`";
        assert_eq!(worded(message), "unknown variant `slice`: did you mean `splice`?");
        assert_eq!(worded("missing field `to`"), "missing field `to`");
        for (message, words) in [
            ("invalid type: sequence, expected a string", "one value, without brackets"),
            ("invalid type: integer `5`, expected path string", "in quotes"),
            ("invalid type: string \"a, expected b\", expected a boolean", "b\": write true"),
            ("invalid type: integer `5`, expected a sequence", "`5`: put it in brackets"),
            ("invalid type: map, expected a sequence", "[[relay.route]]"),
            ("wanted string or table", "in quotes, without brackets"),
            ("unknown field `a`b`, expected `a_b` or `c`", "mean `a_b`?"),
        ] {
            assert!(worded(message).contains(words), "{message}: {}", worded(message));
        }
    }
}
