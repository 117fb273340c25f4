//! Files, right and wrong.

mod advice;
mod mutations;
mod size;

use super::*;

const ALL: &str = r#"
    [process]
    drain = "2s"
    metrics = "[::1]:9100"

    [[l3]]
    interfaces = ["a", "b"]
    path = "xdp-native"
    migrate = { to_nic_above = 1000, to_host_below = 100 }

    [[relay]]
    name = "web"
    listen = "tcp://127.0.0.1:8080"
    to = "unix:/run/web"
    mode = "splice"
    check = { every = "5s", fall = 2 }
    retries = { percent = 50 }
    allow = ["10.0.0.0/8", "fd00::/8"]
    deny = "10.1.0.0/16"
    per_source_max = 10

    [[relay]]
    listen = "udp://127.0.0.1:53"
    resolve = "5s"
    to = ["udp://dns.test:53", { url = "udp://192.0.2.2:53", weight = 3 }]
    balance = "random-two"

    [[l2]]
    between = ["c", "d"]
    waiting = "spin"

    [[nat]]
    inside = ["lan"]
    outside = "wan"
    address = "198.51.100.1"
    publish = ["tcp:80=10.0.0.2:8080"]
"#;

/// Goal: every kind of flow is read, in the order of the file, with names, lines and defaults. Method: a
/// file with all.
#[test]
fn a_file_with_everything() {
    let config = parse("f", ALL).unwrap();
    let flows = config.flows.iter().map(|flow| flow.origin.describe("", "here").text);
    let expected = [("l3-1", 6), ("web", 11), ("relay-2", 22), ("l2-1", 28), ("nat-1", 32)]
        .map(|(name, line)| format!("f, line {line}, column 5: flow `{name}`: here"));
    assert_eq!(flows.collect::<Vec<_>>(), expected);
    assert_eq!(config.process.drain.to_string(), "2s");
    let FlowKind::L3(l3) = &config.flows[0].kind else { panic!("{config:?}") };
    let thresholds = l3.frames.migration().unwrap();
    assert_eq!((thresholds.to_nic_above, thresholds.to_host_below), (1000, 100));
    assert_eq!((thresholds.hold.as_secs(), l3.table), (5, 254));
    let FlowKind::Relay(relay) = &config.flows[1].kind else { panic!("{config:?}") };
    assert_eq!((relay.mode, relay.idle.0.as_secs()), (RelayMode::Splice, 300));
    assert_eq!((relay.to.len(), relay.balance), (1, BalanceChoice::First));
    let check = relay.check.expect("it is set");
    assert_eq!((check.every.0.as_secs(), check.rise, check.fall), (5, 2, 2));
    assert_eq!(relay.retries, Some(Retries { percent: 50, min_per_second: 10 }));
    assert_eq!((relay.allow.len(), relay.deny.len()), (2, 1));
    assert_eq!((relay.per_source_max, relay.resolve), (Some(10), RESOLVE_DEFAULT));
    let metrics = config.process.metrics.as_ref().map(EndpointUri::to_string);
    assert_eq!(metrics.as_deref(), Some("tcp://[::1]:9100"));
    let FlowKind::Relay(relay) = &config.flows[2].kind else { panic!("{config:?}") };
    let weights: Vec<_> = relay.to.iter().map(|to| to.weight).collect();
    assert_eq!((weights, relay.balance), (vec![1, 3], BalanceChoice::RandomTwo));
}

/// Goal: errors are reported with the line and the remedy. Method: one error at a time, with words that the message
/// must have.
#[test]
fn faults_are_named() {
    let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
    let l3 = "[[l3]]\ninterfaces = ['a', 'b']\n";
    let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
    for (text, words) in [
        (String::new(), &["no flow", "[[relay]]"][..]),
        ("[[relay]\n".to_owned(), &["line 1"]),
        ("[[tunnel]]\n".to_owned(), &["line 1", "tunnel", "expected one of", "relay"]),
        (format!("{relay}mod = 'copy'\n"), &["line 4", "unknown field `mod`", "mean `mode`?"]),
        (format!("{relay}mode = 'fast'\n"), &["line 4", "`fast`", "`splice`"]),
        (format!("{relay}mode = 'slice'\n"), &["line 4", "mean `splice`?"]),
        ("[[rely]]\n".to_owned(), &["line 1", "mean `relay`?"]),
        (relay.replace("[[relay]]", "[relay]"), &["line 1", "write [[relay]]", "two brackets"]),
        ("relay = { to = 'a' }\n".to_owned(), &["line 1", "write [[relay]]"]),
        ("relay = 5\n".to_owned(), &["line 1", "begins with [[relay]]"]),
        (format!("\n{}", l3.replace("[[l3]]", "[l3]")), &["line 2", "write [[l3]]"]),
        ("[l2]\nbetween = ['a', 'b']\n".to_owned(), &["line 1", "write [[l2]]"]),
        (nat.replace("[[nat]]", "[nat]"), &["line 1", "write [[nat]]"]),
        (format!("[[process]]\ndrain = '1s'\n{relay}"), &["line 1", "write [process]"]),
        (format!("[process]\ndrian = '1s'\n{relay}"), &["line 2", "mean `drain`?"]),
        (format!("{l3}[[l3.migrate]]\nto_nic_above = 5\n"), &["line 3", "write [l3.migrate]"]),
        ("[[l3]]\ninterfaces = 'a'\n".to_owned(), &["line 2", "brackets"]),
        (format!("{relay}idle = 10\n"), &["line 4", "`10` has no unit", "\"10s\""]),
        (format!("[process]\ndrain = 10\n{relay}"), &["line 2", "write \"10s\""]),
        (format!("{relay}idle = true\n"), &["line 4", "\"10s\""]),
        (format!("{relay}idle = '10'\n"), &["line 4", "with a unit", "10s"]),
        (relay.replace("tcp://127.0.0.1:1", "127.0.0.1:1"), &["line 2", "begin with tcp://"]),
        (relay.replace("127.0.0.1:1", "localhost:1"), &["line 2", "not resolved"]),
        ("[[relay]]\nlisten = 'tcp://[::]:1'\n".to_owned(), &["line 1", "missing field `to`"]),
        (format!("{relay}proxy_from = ['a']\n"), &["line 4", "10.0.0.0/8"]),
        (format!("{relay}framed = 'u8'\n"), &["line 4", "`u32-be`"]),
        (format!("{relay}frame_mode = 'cut-through'\n"), &["line 4, column 14", "`framed`"]),
        (format!("{l3}[l3.migrate]\nto_nic_above = 5\nto_host_below = 7\n"), &["line 5", "below"]),
        (format!("{l3}[l3.migrate]\nto_host_below = 1\nto_nic_above = -5\n"), &["line 5", "-5"]),
        ("\n[[l3]]\ninterfaces = []\n".to_owned(), &["line 3", "two interfaces"]),
        ("[[l2]]\nbetween = ['a', 'a']\n".to_owned(), &["line 2", "`a`"]),
        ("[[l2]]\nbetween = ['a']\n".to_owned(), &["line 2", "two interfaces", "and not 1"]),
        ("[[l2]]\nbetween = ['a', 'b', 'c']\n".to_owned(), &["line 2", "and not 3"]),
        ("[[l2]]\nbetween = ['a', 'a-name-that-is-too-long']\n".to_owned(), &["line 2", "15"]),
        (format!("{l3}{}", l3.replace("'b'", "'c'")), &["line 4, column 15", "`a`", "l3-1"]),
        (
            format!("{relay}name = 'x'\n{}name = 'x'\n", relay.replace(":1'", ":3'")),
            &["line 8", "`x`", "name"],
        ),
        (format!("{relay}{relay}"), &["line 5", "relay-1", "listen"]),
        (format!("{relay}connections_max = 0\n"), &["line 4", "connections_max", "1000000"]),
        (format!("{relay}connections = 0\n"), &["line 4", "1 to 1000000"]),
        (format!("{relay}connections_max = {}\n", i64::MAX), &["line 4", "1 to 1000000"]),
        (format!("{relay}connections_max = 'a'\n"), &["line 4", "whole number"]),
        (
            format!("{relay}connections = 5\nconnections_max = 5\n"),
            &["line 4", "one setting", "remove `connections`"],
        ),
        (
            format!("{relay}{}", relay.replace("127.0.0.1:1'", "0.0.0.0:1'")),
            &["overlaps", "relay-1"],
        ),
        (format!("{relay}{}", relay.replace("127.0.0.1:1'", "[::]:1'")), &["overlaps", "relay-1"]),
        (l3.replace(", 'b'", ""), &["line 2", "two interfaces"]),
        (l3.replace("'b'", "'lo'"), &["line 2", "`lo`", "loopback"]),
    ] {
        assert_refused(&text, words);
    }
}

/// Goal: errors of a translation's addresses and ports are reported with the line and the remedy. Method: one error at a time.
#[test]
fn faults_of_translations_are_named() {
    let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
    for (text, words) in [
        (format!("{nat}ports = '9-1'\n"), &["line 5", "20000-60000"][..]),
        (format!("{nat}ports_per_host = 0\n"), &["line 5", "^", "1 to 65535"]),
        (format!("{nat}ports_per_host = 8\n"), &["line 5", "`ports`", "`from`"]),
        (
            format!("{nat}ports_per_host = 8\nfrom = '10.0.0.0/30'\nports = '2000-2030'\n"),
            &["line 5", "4 addresses", "32 ports", "31", "at most 7"],
        ),
        (
            format!("{nat}ports_per_host = 8\nfrom = '10.0.0.0/8'\nports = '2000-2030'\n"),
            &["line 5", "16777216 addresses", "31", "at most 3 addresses"],
        ),
        (
            format!(
                "{nat}ports_per_host = 8\nfrom = ['10.0.0.0/31', '10.0.0.1']\nports = '2000-2030'\n"
            ),
            &["line 6", "10.0.0.0/31 and 10.0.0.1/32", "overlap"],
        ),
        (
            format!(
                "{nat}ports_per_host = 8\nfrom = '10.0.0.0/31'\nports = '2000-2030'\npublish = ['tcp:2010=10.0.0.0:80']\n"
            ),
            &["line 8", "2010", "`ports` (2000-2030)"],
        ),
        (format!("{nat}from = '::/0'\n"), &["line 5", "10.0.0.0/24"]),
        (format!("{nat}publish = ['tcp:1=[::1]:1']\n"), &["line 5", "IPv4"]),
        (format!("{nat}host_share = 0\n"), &["line 5", "host_share", "1 to 100"]),
        (format!("{nat}from = '10.0.0.0/33'\n"), &["line 5", "at most 32"]),
    ] {
        assert_refused(&text, words);
    }
}

/// Goal: errors of a relay's targets are reported with the line and the remedy. Method: one error at a time.
#[test]
fn faults_of_targets_are_named() {
    let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
    for (text, words) in [
        (format!("{relay}check = {{ ever = '1s' }}\n"), &["line 4", "`ever`", "mean `every`?"][..]),
        (format!("[process]\nmetrics = '9100'\n{relay}"), &["line 2", "127.0.0.1:9100"]),
        (format!("[process]\nmetrics = '127.0.0.1:1'\n{relay}"), &["line 4", "`metrics`"]),
        (
            format!("[process]\nstats_socket = '/{}'\n{relay}", "x".repeat(107)),
            &["line 2", "^", "108 bytes", "107"],
        ),
        (
            relay.replace("'tcp://127.0.0.1:2'", "'tcp://web.1:80'"),
            &["line 3", "`web.1:80`", "web.example:7000"],
        ),
        (format!("{relay}deny = '10.0.0.0/33'\n"), &["line 4", "10.0.0.0/8", "32 bits", "128"]),
        (format!("{relay}check = true\n"), &["line 4", "a table", "{ every = \"2s\" }"]),
        (format!("{relay}tls = true\n"), &["line 4", "a table", "certificate"]),
        (format!("{relay}to_tls = 5\n"), &["line 4", "a table", "{}"]),
        (format!("{relay}retries = {{ ratio = 1 }}\n"), &["line 4", "`ratio`", "`percent`"]),
        (format!("{relay}retries = 20\n"), &["line 4", "retries = { percent = 20"]),
        (format!("{}retries = {{}}\n", relay.replace("tcp:", "udp:")), &["`retries`", "streams"]),
        (format!("{relay}per_source_max = 0\n"), &["line 4", "from 1 to 4294967295"]),
        (format!("{relay}per_source_max = -1\n"), &["line 4", "from 1 to 4294967295"]),
        (format!("{relay}resolve = '0s'\n"), &["line 4", "`resolve`"]),
        (
            relay.replace("'tcp://127.0.0.1:2'", "['tcp://[::1]:2', 'tcp://[::1]:2']"),
            &["line 3, column 24", "twice", "remove one"],
        ),
        (
            format!("{relay}check = {{ every = '1s', timeout = '2s' }}\n"),
            &["line 4, column 35", "`timeout`"],
        ),
        (format!("{relay}check = {{ rise = 0 }}\n"), &["line 4", "from 1 to"]),
        (format!("{relay}log = 'all'\n"), &["line 4", "`all`", "`each`"]),
        (format!("{relay}log = 'sources'\n"), &["line 4", "`log`", "\"each\""]),
        (format!("[process]\nlog_file = 'log'\n{relay}"), &["line 2", "./forward.log"]),
        (format!("[process]\nlog_file = '/log'\n{relay}"), &["`log_file`", "log = \"each\""]),
        (relay.replace("tcp:", "udp:") + "check = {}\n", &["line 4", "`check`", "datagrams"]),
        (format!("{relay}balance = 'robin'\n"), &["line 4", "`robin`", "`round-robin`"]),
        (
            relay.replace("'tcp://127.0.0.1:2'", "[{ url = 'tcp://127.0.0.1:2', weight = 0 }]"),
            &["line 3", "1 to 256"],
        ),
        (
            relay.replace("'tcp://127.0.0.1:2'", "[{ url = 'tcp://127.0.0.1:2', wait = 1 }]"),
            &["line 3", "`wait`", "`weight`"],
        ),
    ] {
        assert_refused(&text, words);
    }
}

/// Goal: what only one flow or process can have is refused to a second one. Method: a state file that two flows name, a stats socket that two
/// settings name, and interfaces that would pass to another process.
#[test]
fn what_one_alone_has_is_refused() {
    let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
    let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\naddress = '192.0.2.1'\n";
    for (text, words) in [
        (
            format!(
                "{nat}state = '/s'\n{}state = '/./s'\n",
                nat.replace("'a'", "'c'").replace("'b'", "'d'")
            ),
            &["line 10", "flow `nat-1`", "/./s", "`state`"][..],
        ),
        (
            format!("[process]\ntakeover = '/a'\nstats_socket = '/b'\n{relay}"),
            &["`takeover`", "remove `stats_socket`"],
        ),
        (
            "[process]\ntakeover = '/a'\n[[l2]]\nbetween = ['a', 'b']\n".to_owned(),
            &["line 3", "`takeover`", "relays"],
        ),
    ] {
        assert_refused(&text, words);
    }
}

/// Goal: the files in the guide are right. Method: each of its blocks of TOML is read.
#[test]
fn the_files_of_the_guide_are_read() {
    let guide = include_str!("../../../../../docs/guide/forwarding.md");
    let blocks: Vec<_> = guide.split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let text = block.split("```").next().unwrap();
        parse("guide", text).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Goal: a file with all settings of TLS is read, and its faults are reported with the line and the remedy. Method: one error at a time.
#[test]
fn settings_of_tls_are_read() {
    let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://web.test:2'\n";
    let route = "[[relay.route]]\nnames = '*.a.test'\ntls = { pass_through = true }\n";
    let all = format!(
        "{relay}tls = {{ certificate = 'c', key = 'k', alpn = 'h2' }}\nto_tls = {{}}\n{route}to = 'tcp://[::1]:3'\n\
         to_tls = {{ server_name = 'a.test', ca = 'ca', certificate = 'c', key = 'k', alpn = ['a', 'b'] }}\n"
    );
    let config = parse("f", &all).unwrap();
    let FlowKind::Relay(read) = &config.flows[0].kind else { panic!("{config:?}") };
    assert_eq!((read.tls.alpn.len(), read.to_tls.is_on, read.route.len()), (1, true, 1));
    assert_eq!(read.to_tls.name_for(&read.to[0]).as_deref(), Some("web.test"));
    let of_route = &read.route[0];
    assert_eq!(of_route.to_tls.name_for(&of_route.to[0]).as_deref(), Some("a.test"));
    assert!(of_route.tls.pass_through && of_route.to_tls.is_on);
    for (text, words) in [
        (format!("{relay}tls = {{}}\n"), &["line 4", "`certificate`", "`pass_through"][..]),
        (
            format!("{relay}tls = {{ certificate = 'c' }}\n"),
            &["line 4, column 23", "without its `key`"],
        ),
        (format!("{relay}tls = {{ certificat = 'c' }}\n"), &["line 4", "mean `certificate`?"]),
        (format!("{relay}tls = {{ pass_through = true, alpn = 'h2' }}\n"), &["`alpn`"]),
        (format!("{relay}to_tls = {{ key = 'k' }}\n"), &["line 4", "`to_tls` needs"]),
        (format!("{relay}to_tls = {{ verify = false }}\n"), &["line 4", "`verify`"]),
        (
            relay.replace("tcp://web.test:2", "unix:/run/web") + "to_tls = {}\n",
            &["line 4", "`server_name` of unix:/run/web"],
        ),
        (relay.replace("tcp:", "udp:") + "to_tls = {}\n", &["line 4", "`to_tls` is for streams"]),
        (format!("{relay}{}", route.replace("'*.a.test'", "[]")), &["line 5", "`names`"]),
        (format!("{relay}{route}to_tls = {{}}\n"), &["line 7", "`to_tls` without `to`"]),
        (format!("{relay}{route}to = 'tcp://127.0.0.1:1'\n"), &["line 7", "to itself"]),
        (relay.replace("'tcp://web.test:2'", "[]") + route, &["line 3", "`to` is empty"]),
    ] {
        assert_refused(&text, words);
    }
}

/// Checks that a file has one mistake, and what is said of it.
#[track_caller]
fn assert_refused(text: &str, words: &[&str]) {
    let error = parse("f", text).unwrap_err();
    assert_eq!(error.problems().len(), 1, "{text}\n{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{text}\n{error}\nlacks {word}");
    }
}

/// Goal: what no host can do is refused without looking at it: paths, names of interfaces, a folder as a log, an empty list of allowed
/// clients. Method: one file each.
#[test]
fn what_cannot_be_is_refused() {
    let l3 = |more: &str| format!("[[l3]]\ninterfaces = ['a', 'b']\n{more}");
    let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\npath = 'af-xdp'\n";
    let relay = "[[relay]]\nlisten = 'tcp://127.0.0.1:1'\nto = 'tcp://127.0.0.1:2'\n";
    let cannot = &["line 2, column 20", "cannot be the name of an interface"][..];
    for (text, words) in [
        (l3("path = 'af-xdp'"), &["line 3", "`path`", "for l2 only"][..]),
        (nat.to_owned(), &["line 4", "`path`", "for l2 only"]),
        (l3("").replace("'b'", "'a/b'"), cannot),
        (l3("").replace("'b'", "'a b'"), cannot),
        (l3("").replace("'b'", "'sixteen-letters-'"), cannot),
        (
            format!("[process]\nlog_file = '/var'\n{relay}log = 'each'\n"),
            &["`log_file` is /var", "folder", "/var/forward.log"],
        ),
        (nat.replace("path = 'af-xdp'", "state = ''"), &["line 4", "`state` is empty"]),
        (format!("{relay}check = {{ every = '300ms' }}\n"), &["line 4", "1s if it is not given"]),
        (format!("{relay}allow = []\n"), &["line 4", "`allow` is empty", "10.0.0.0/8"]),
        (nat.replace("path = 'af-xdp'", "from = []"), &["line 4", "`from` is empty", "`inside`"]),
    ] {
        assert_refused(&text, words);
    }
}

/// Goal: a connection that would come back to its relay for ever is refused, and so is a path that no socket can have. Method:
/// targets that are the relay's own, directly, by a wildcard, and by two other relays; a path that is too long by a byte.
#[test]
fn circles_and_long_paths_are_refused() {
    let relay = |listen: &str, to: &str| {
        format!("[[relay]]\nlisten = 'tcp://{listen}'\nto = 'tcp://{to}'\n")
    };
    for (text, words) in [
        (relay("127.0.0.1:1", "127.0.0.1:1"), &["line 3", "to itself"][..]),
        (relay("0.0.0.0:1", "127.0.0.1:1"), &["line 3", "to itself"]),
        (relay("[::]:1", "127.0.0.2:1"), &["line 3", "to itself"]),
        (
            relay("0.0.0.0:1", "127.0.0.1:2")
                + &relay("[::1]:2", "[::1]:3")
                + &relay("127.0.0.1:2", "127.0.0.1:1"),
            &["line 3", "to itself by flow `relay-3`"],
        ),
        (
            format!("[[relay]]\nlisten = 'unix:{}'\nto = 'tcp://127.0.0.1:1'\n", "x".repeat(108)),
            &["line 2", "108 bytes", "107"],
        ),
    ] {
        assert_refused(&text, words);
    }
    let chain = relay("0.0.0.0:1", "127.0.0.1:2") + &relay("127.0.0.1:2", "127.0.0.1:3");
    assert!(parse("f", &chain).is_ok());
    // Checks that look at each pair would take hours.
    let chain = (1..20_000)
        .map(|port| relay(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", port + 1)));
    assert!(parse("f", &chain.collect::<String>()).is_ok());
}

/// Goal: each circle is reported, and the addresses are compared as a relay does when it starts. Method: circles that share a relay; pairs of
/// addresses, of which the same ones are refused by the relay.
#[test]
fn all_circles_are_found() {
    let relay =
        |listen: &str, to: &str| format!("[[relay]]\nlisten = 'tcp://{listen}'\nto = {to}\n");
    let circles = relay("[::1]:1", "[«'tcp://[::1]:2'», 'tcp://[::1]:3']")
        + &relay("[::1]:2", "'tcp://[::1]:1'")
        + &relay("[::1]:3", "[«'tcp://[::1]:3'», 'tcp://[::1]:4']")
        + &relay("[::1]:4", "'tcp://[::1]:5'")
        + &relay("[::1]:5", "'tcp://[::1]:3'").replace("[::1]:3", "[::1]:9");
    assert_marked(&circles, &["by flow `relay-2`"]);
    for (listen, target, is_circle) in [
        ("[::ffff:127.0.0.1]:81", "127.0.0.1:81", true),
        ("127.0.0.1:81", "[::ffff:127.0.0.1]:81", true),
        ("127.0.0.2:80", "127.0.0.1:80", false),
        ("0.0.0.0:80", "127.0.0.2:80", true),
        ("0.0.0.0:80", "[::1]:80", false),
        ("[::]:80", "127.0.0.1:80", true),
        ("0.0.0.0:80", "192.0.2.1:80", false),
    ] {
        let read = parse("f", &relay(listen, &format!("'tcp://{target}'")));
        assert_eq!(read.is_err(), is_circle, "{listen} {target}");
    }
}

/// Goal: no text makes the parser panic. Method: the file with everything, with bytes changed, from 64 seeds.
#[test]
fn any_text_is_read_safely() {
    for seed in 0..64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..20 {
            let mut text = ALL.as_bytes().to_vec();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..text.len());
                text[at] = rng.u8(0x20..0x7f);
            }
            text.truncate(rng.usize(..=text.len()));
            drop(parse("f", std::str::from_utf8(&text).unwrap()));
        }
    }
}

/// Checks a text in which « and » are around each place with a mistake: there are no others, and each is shown with its line and marked.
#[track_caller]
fn assert_marked(marked: &str, words: &[&str]) {
    let text = marked.replace(['«', '»'], "");
    let error = parse("f", &text).expect_err(marked);
    let shown = error.to_string();
    let mut expected = Vec::new();
    for (index, line) in marked.lines().enumerate() {
        let (mut rest, mut column) = (line, 1);
        while let Some((before, after)) = rest.split_once('«') {
            let (place, after) = after.split_once('»').expect("it is closed");
            column += before.chars().count();
            expected.push(format!("f, line {}, column {column}: ", index + 1));
            let indent = text.lines().nth(index).expect("a line").chars().take(column - 1);
            let indent = indent.map(|letter| if letter == '\t' { '\t' } else { ' ' });
            let mark = indent.collect::<String>() + &"^".repeat(place.chars().count());
            let mark = format!(
                " | {}\n{} | {mark}",
                line.replace(['«', '»'], ""),
                " ".repeat((index + 1).to_string().len())
            );
            assert!(shown.contains(&mark), "{marked}\n{shown}\nlacks\n{mark}");
            column += place.chars().count();
            rest = after;
        }
    }
    let problems = error.problems();
    assert_eq!(problems.len(), expected.len(), "{marked}\n{shown}");
    for (problem, place) in problems.iter().zip(&expected) {
        assert!(problem.starts_with(place), "{marked}\n{shown}\nis not at {place}");
    }
    for word in words {
        assert!(shown.contains(word), "{marked}\n{shown}\nlacks {word}");
    }
    let count = format!("{} errors:\n", expected.len());
    assert_eq!(shown.starts_with(&count), expected.len() > 1, "{shown}");
    assert!(!shown.contains("parse error") && !shown.contains("$__toml"), "{shown}");
}

/// Goal: all mistakes of a file are reported at once, in its order, each at its key or element, and none is a mere consequence of another. Method:
/// files with several.
#[test]
fn all_mistakes_are_marked() {
    for (marked, words) in [
        ("a = «x»\n", &["TOML syntax: "][..]),
        ("a = 5\n«a» = 6\n", &["TOML syntax: duplicate key"]),
        ("«[[relay]]»\nto = 'unix:/u'\n", &["missing field `listen`"]),
        (
            "«tunnel» = 1\n[process]\ndrain = «5»\n«drian» = '1s'\n[[l2]]\nbetween = «['a']»\n\tpath = «'af-xpd'»\n",
            &["unknown table `tunnel`", "mean `drain`?", "mean `af-xdp`?"],
        ),
        // A wrong listener is neither missing, nor does it fit a target, nor is it where another one is.
        (
            "[[relay]]\nlisten = «'udp:/x'»\nto = ['tcp://[::1]:1', «'x'», «'tcp://[::1]:0'»]\nidle = «'0s'»\n\
             [[relay]]\nlisten = 'unix:/u'\nto = 'unix:/x'\n",
            &[],
        ),
        // Nor is what depends on a wrong key a mistake.
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:2'\nframed = «'u8'»\nframe_mode = 'cut-through'\n\
             check = { every = «'5x'», timeout = '3s' }\nlog = «'all'»\n[process]\nlog_file = '/log'\n",
            &[],
        ),
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = [{ url = «'x'», weight = «0» }, {«wait» = 1, url = 'unix:/u'}, «{}»]\n",
            &["missing field `url`"],
        ),
        (
            "[[l3]]\ninterfaces = ['a', «'lo'»]\ntable = «0»\n«[l3.migrate]»\nto_host_below = «0»\n",
            &["missing field `to_nic_above`"],
        ),
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:2'\n[[relay.route]]\ntls = { pass_through = true, alpn = «'h2'» }\n\
             names = «5»\nto = «'x'»\n«[[relay.route]]»\nnames = 'a.test'\n[[relay.route]]\nnames = 'b.test'\n\
             tls = { certificate = 'c', key = 'k', alpn = ['http/1.1', «'h3'», «'h2c'», «'http/2'»] }\n",
            &["missing field `tls`", "QUIC", "that of HTTP/2 is h2"],
        ),
        // A list that is empty, or lacks what was wrong in it, is one mistake.
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'unix:/a'\n[[relay.route]]\nnames = ['a.example']\ntls = { pass_through = true }\n\
             to = [«'tcp://b.example:443,weight=999'»]\nto_tls = {}\n",
            &[],
        ),
        // Each target of the wrong kind is one, and other settings are checked, too.
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = [«'udp://[::1]:5'», 'unix:/u', «'udp://[::1]:6'»]\n\
             to_tls = { server_name = 'a', alpn = [«'h3'»] }\n",
            &["do not fit"],
        ),
        (
            "[[relay]]\nlisten = 'udp://[::1]:1'\nto = [«'tcp://[::1]:5'»]\nproxy_send = «true»\ncheck = «{}»\ntls = «{}»\n",
            &["do not fit"],
        ),
        // A flow without a name that can be read takes none of another one.
        (
            "[[relay]]\nname = «5»\nlisten = 'tcp://[::1]:1'\nto = 'unix:/u'\n\
             [[relay]]\nname = 'relay-1'\nlisten = 'tcp://[::1]:2'\nto = 'unix:/u'\n",
            &[],
        ),
        (
            "[[relay]]\nlisten = «2020-01-01»\nto = [«07:32:00», «1979-05-27T07:32:00Z»]\nidle = «2020-01-01»\n",
            &["no setting is a date"],
        ),
        (
            "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'unix:/u'\n[[relay.route]]\nnames = 'a.example'\ntls = { pass_through = true }\n\
             [[relay.route]]\nnames = ['b.example', «'A.example.'»]\ntls = { pass_through = true }\n",
            &["two routes have the name `A.example.`"],
        ),
    ] {
        assert_marked(marked, words);
    }
}

/// Goal: values that cannot mean what they say are refused at their place. Method: one each.
#[test]
fn values_without_effect_are_refused() {
    let relay = "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:2'\n";
    let nat = "[[nat]]\ninside = ['a']\noutside = 'b'\n";
    let l3 = "[[l3]]\ninterfaces = ['a', 'b']\n";
    for (marked, words) in [
        (format!("{relay}resolve = «'999ms'»\n"), &["at least 1s"][..]),
        (format!("{relay}check = {{ every = «'1ms'» }}\n"), &["at least 10ms"]),
        (
            format!("{relay}tls = {{ certificate = 'c', key = 'k', alpn = [«'h3-29'»] }}\n"),
            &["QUIC"],
        ),
        (format!("{relay}to_tls = {{ alpn = «'h3'» }}\n"), &["QUIC"]),
        (format!("{relay}message_max = «5»\n"), &["`framed`"]),
        (format!("{relay}frame_mode = «'planned'»\nmessage_max = «16777216»\n"), &["`framed`"]),
        (format!("{relay}framed = 'varint'\nmessage_max = «0»\n"), &["from 1"]),
        (relay.replace("tcp://[::1]:1", "unix:/l") + "allow = «'10.0.0.0/8'»\n", &["no address"]),
        (format!("{l3}table = «0»\n"), &["from 1 to"]),
        (
            format!(
                "{l3}path = 'af-packet'\nmigrate = «{{ to_nic_above = 9, to_host_below = 1 }}»\n"
            ),
            &["`path`"],
        ),
        (format!("{l3}migrate = {{ to_nic_above = 9, to_host_below = «0» }}\n"), &["from 1"]),
        (format!("{nat}publish = [«'tcp:1=10.0.0.1:0'», «'tcp:2=0.0.0.0:1'»]\n"), &["of a server"]),
        (format!("{nat}state = «'/'»\n"), &["folder"]),
    ] {
        assert_marked(&marked, words);
    }
    for right in [
        format!("{relay}resolve = '1s'\ncheck = {{ every = '10ms', timeout = '10ms' }}\n"),
        // A flow is taken out of service for a while.
        format!("{relay}allow = '10.0.0.0/8'\ndeny = ['::/0', '0.0.0.0/0']\n"),
        relay.replace("'tcp://[::1]:2'", "'tcp://[::1]:2,weight=3'") + "balance = 'hash'\n",
        relay.replace("tcp://[::1]:1", "unix:/l") + "allow = '10.0.0.0/8'\nproxy_from = '::/0'\n",
    ] {
        parse("f", &right).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Keys with a right value ("": there may be none), and wrong ones with their numbers of mistakes. `#` is the number of the flow.
type Keys = &'static [(&'static str, &'static str, &'static [(&'static str, usize)])];

const RELAY_KEYS: Keys = &[
    ("name", "", &[("'a b'", 1), ("5", 1)]),
    ("listen", "'tcp://127.0.0.1:1#'", &[("'x'", 1), ("5", 1), ("'tcp://localhost:1'", 1)]),
    (
        "to",
        "'tcp://127.0.0.1:9'",
        &[("['x', 'unix:/u', 'y']", 2), ("'tcp://[::1]:0'", 1), ("5", 1), ("[]", 1)],
    ),
    ("balance", "'hash'", &[("'leastconn'", 1), ("5", 1)]),
    (
        "check",
        "{ every = '1s' }",
        &[
            ("{ every = '1ms' }", 1),
            ("{ rise = 0, fall = 0 }", 2),
            ("{ ever = 1, rise = -1 }", 2),
            ("5", 1),
        ],
    ),
    ("retries", "{}", &[("{ ratio = 1 }", 1), ("[]", 1), ("[5, 5]", 1)]),
    ("resolve", "'1s'", &[("'1ms'", 1), ("5", 1)]),
    ("mode", "'copy'", &[("'fast'", 1)]),
    ("idle", "'1s'", &[("'0s'", 1), ("'1'", 1)]),
    ("connections_max", "5", &[("0", 1), ("'a'", 1)]),
    ("allow", "'10.0.0.0/8'", &[("[]", 1), ("['x', 'y', '::/0']", 2)]),
    ("per_source_max", "5", &[("0", 1), ("-1", 1)]),
    ("log", "'each'", &[("'sources'", 1), ("true", 1)]),
    ("to_tls", "{}", &[("{ alpn = 'h3' }", 1), ("{ verify = false }", 1), ("5", 1)]),
];

const L3_KEYS: Keys = &[
    ("interfaces", "['a#', 'b#']", &[("['a#']", 1), ("'a#'", 1), ("['c#', 'lo', 'a b']", 2)]),
    ("table", "5", &[("0", 1), ("-1", 1)]),
    ("waiting", "'spin'", &[("'moon'", 1)]),
    (
        "migrate",
        "{ to_nic_above = 5, to_host_below = 1 }",
        &[
            ("{ to_nic_above = 5, to_host_below = 7 }", 1),
            ("{}", 2),
            ("{ to_nic_above = -5, to_host_below = 7 }", 1),
            ("[]", 1),
        ],
    ),
];

const L2_KEYS: Keys = &[
    ("between", "['c#', 'd#']", &[("['c#']", 1), ("['c#', 5]", 1), ("['c#', '.']", 1)]),
    ("segments", "'cut'", &[("5", 1)]),
];

const NAT_KEYS: Keys = &[
    ("inside", "['e#']", &[("[]", 1), ("['a/b', '']", 2), ("5", 1)]),
    ("outside", "'f#'", &[("'lo'", 1), ("5", 1)]),
    ("address", "'192.0.2.1'", &[("'127.0.0.1'", 1), ("'::1'", 1)]),
    ("from", "'10.0.0.0/8'", &[("'::/0'", 1), ("['10.0.0.0/33', '10.0.0.0/8', '']", 2)]),
    ("ports", "'5000-6000'", &[("'9-1'", 1)]),
    ("host_share", "5", &[("0", 1), ("256", 1)]),
    ("idle", "'1s'", &[("'0s'", 1), ("'999ms'", 1), ("5", 1)]),
    ("publish", "['tcp:1=10.0.0.1:1']", &[("['tcp:1=[::1]:1', 'udp:2=10.0.0.1:0']", 2), ("5", 1)]),
    ("state", "'/s#'", &[("'/'", 1), ("5", 1)]),
];

/// Required keys.
const REQUIRED: [&str; 6] = ["listen", "to", "interfaces", "between", "inside", "outside"];

/// Goal: a file with so many wrong keys gets so many errors, in their order and on their lines. Method: flows drawn from 400 seeds, with keys in any
/// order, that are right, wrong or missing.
#[test]
fn each_wrong_key_is_an_error() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut lines, mut expected) = (Vec::new(), Vec::new());
        for flow in 0..rng.usize(1..5) {
            let (word, keys) =
                [("relay", RELAY_KEYS), ("l3", L3_KEYS), ("l2", L2_KEYS), ("nat", NAT_KEYS)]
                    [rng.usize(..4)];
            lines.push(format!("[[{word}]]"));
            let header = lines.len();
            let mut keys = keys.to_vec();
            rng.shuffle(&mut keys);
            for (key, right, wrong) in keys {
                let (value, count) = match rng.u8(..8) {
                    0 | 1 => wrong[rng.usize(..wrong.len())],
                    2 if REQUIRED.contains(&key) => {
                        expected.push(header);
                        continue;
                    }
                    2 | 3 if !REQUIRED.contains(&key) => continue,
                    _ if right.is_empty() => continue,
                    _ => (right, 0),
                };
                lines.push(format!("{key} = {}", value.replace('#', &flow.to_string())));
                expected.extend([lines.len()].repeat(count));
            }
        }
        expected.sort_unstable();
        let text = lines.join("\n");
        let problems = parse("f", &text).map_or_else(|error| error.problems(), |_| Vec::new());
        let found = problems.iter().map(|problem| {
            let rest = problem.strip_prefix("f, line ").expect("a place");
            rest.split_once(',').expect("a column").0.parse::<usize>().expect("a number")
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "seed {seed}\n{text}\n{problems:#?}");
    }
}

/// Goal: reports are bounded. Method: a file with more wrong flows, and a flow with more wrong targets, than are reported.
#[test]
fn mistakes_are_limited() {
    let flows = "[[relay]]\n".repeat(1000);
    let targets =
        format!("[[relay]]\nlisten = 'tcp://[::1]:1'\nto = ['x'{}]\n", ", 'x'".repeat(1000));
    for text in [flows, targets] {
        let error = parse("f", &text).expect_err("it is wrong");
        assert_eq!(error.problems().len(), 100);
        let shown = error.to_string();
        assert!(shown.starts_with("100 errors, and there may be more:\n"), "{shown}");
        assert!(shown.len() < 100 * 200, "a long line is shown");
    }
}

/// Goal: once there are as many mistakes as are reported, no more work is done. Method: texts of mistakes that must not be asked for; a flow behind wrong tables,
/// which is not read; a file whose files are not read.
#[test]
fn reading_ends_with_the_last_mistake() {
    struct Unused;

    impl AsRef<str> for Unused {
        fn as_ref(&self) -> &str {
            panic!("a message that nobody sees is made")
        }
    }

    let flow = "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:2'\n";
    let text = "[[relay]]\n".repeat(1000) + flow;
    let mut mistakes = Mistakes::default();
    let source = Arc::new(Source::new("f".to_owned(), text));
    let config = read_tables(&source, &mut mistakes);
    assert!(config.flows.len() < 100, "{}", config.flows.len());
    mistakes.add(&config.origin, &["drain"], Unused);
    mistakes.add_at(&config.origin, 0..1, Unused);
    let twice = format!(
        "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = ['unix:/u'{}]\n{flow}",
        ", 'unix:/u'".repeat(200)
    );
    let files = |_: &FlowConfig| panic!("a file is read");
    let error = parse_with("f".to_owned(), twice, files).expect_err("it is wrong");
    assert_eq!(error.problems().len(), 100);
}

/// Goal: a key that is misspelt is one mistake, wherever it is. Method: keys that others need.
#[test]
fn a_misspelt_key_is_one_mistake() {
    for marked in [
        "[process]\n«log_fil» = '/x'\n[[relay]]\n«lisen» = 'tcp://[::1]:1'\nto = [{ «ulr» = 'tcp://[::1]:2' }]\n«balanc» = 'hash'\n",
        "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = { «ulr» = 'tcp://[::1]:2' }\n«framd» = 'u32-be'\nmessage_max = 1000\n",
        "[[relay]]\nlisten = 'unix:/a'\nto = 'tcp://[::1]:2'\n«prxy_from» = '10.0.0.0/8'\nallow = '10.0.0.0/8'\n\
         tls = { certificate = '/c', «kye» = '/k' }\n",
        "[[l3]]\n«interface» = ['a', 'b']\nmigrate = { to_nic_above = 5, «to_host_bellow» = 1 }\n",
    ] {
        assert_marked(marked, &["did you mean"]);
    }
}

/// Goal: the value for each required key that is missing lets the rest of its table be read. Method: a table of each kind that lacks all of them.
#[test]
fn tables_without_required_keys_are_read() {
    let text = "[[relay]]\n[[relay]]\nlisten = 'unix:/a'\nto = [{}]\n[[relay.route]]\n[[l2]]\n[[l3]]\n[l3.migrate]\n[[nat]]\n";
    let mut mistakes = Mistakes::default();
    let config =
        read_tables(&Arc::new(Source::new("f".to_owned(), text.to_owned())), &mut mistakes);
    assert_eq!(config.flows.len(), 5, "{mistakes}");
    assert!(mistakes.list().iter().all(|one| one.text.contains("missing field")), "{mistakes}");
}

/// Goal: what a file says can forge no line of the log, nor fill it. Method: names, keys and values with ends of lines, and of 200 kB.
#[test]
fn what_is_quoted_is_short_and_on_one_line() {
    let long = "x ".repeat(100_000);
    for name in ["a\\nb", "a\\u001b[2J", &long] {
        let text = format!("[[relay]]\nname = \"{name}\"\nlisten = \"{name}\"\n\"{name}\" = 1\n");
        let problems = parse("f", &text).expect_err("it is wrong").problems();
        assert_eq!(problems.len(), 4, "{problems:?}");
        for problem in problems {
            assert!(problem.len() < 1500, "{} bytes", problem.len());
            assert!(!problem.contains(char::is_control), "{problem}");
        }
    }
}

/// Goal: the places of a file are not shown once it may have changed. Method: a flow's message before and after they are forgotten.
#[test]
fn places_are_forgotten() {
    let mut config = parse("f", ALL).expect("it is right");
    let text = |config: &Config| config.flows[1].origin.describe("mode", "here").text;
    assert_eq!(text(&config), "f, line 15, column 12: flow `web`: here");
    config.forget_places();
    assert_eq!(text(&config), "flow `web`: here");
}

/// Goal: a wrong setting of TLS is reported once, although the router of names refuses it, too. Method: a route without names.
#[test]
fn a_route_without_names_is_one_mistake() {
    let text = "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'unix:/u'\n[[relay.route]]\nnames = []\ntls = { pass_through = true }\n";
    let read = parse_with("f".to_owned(), text.to_owned(), crate::flow::file_problems);
    assert_eq!(read.expect_err("it is wrong").problems().len(), 1);
}

/// Goal: the stats socket is found in any file, right or wrong. Method: files with other mistakes, of the syntax, too.
#[test]
fn stats_sockets_are_found() {
    for (text, expected) in [
        (ALL, None),
        ("[process]\nstats_socket = '/s'\ntakeover = '/t'\n[[rely]]\n", Some("/s")),
        ("[process]\ntakeover = '/t'\ndrain = 5\n[[relay]\n", Some("/t")),
        ("[[process]]\nstats_socket = '/s'\n", None),
        ("process = 5\n", None),
        ("[process]\nstats_socket = 5\n", None),
    ] {
        assert_eq!(stats_socket(text).as_deref(), expected.map(Path::new), "{text}");
    }
}

/// Goal: no value makes the parser panic or go on for ever. Method: the file with everything, whose values are replaced by others, from 500 seeds.
#[test]
fn any_value_is_read_safely() {
    const VALUES: [&str; 12] = [
        "5",
        "-1",
        "true",
        "''",
        "'x'",
        "[]",
        "[5]",
        "['x']",
        "[[]]",
        "{}",
        "{ a = {} }",
        "[{}, {}]",
    ];
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let replaced = ALL.lines().map(|line| match line.split_once(" = ") {
            Some((key, _)) if rng.u8(..3) == 0 => format!("{key} = {}", VALUES[rng.usize(..12)]),
            _ => line.to_owned(),
        });
        let text = replaced.collect::<Vec<_>>().join("\n");
        drop(parse("f", &text).map_err(|error| error.to_string()));
    }
}
