//! What is said of settings that cannot be, or have no effect.

use super::*;

const RELAY: &str = "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:2'\n";
const NAT: &str = "[[nat]]\ninside = ['a']\noutside = 'b'\n";
const L2: &str = "[[l2]]\nbetween = ['a', 'b']\n";

/// Goal: `check` refuses what `run` refuses on any machine. Method: one such setting at a time, and its neighbours that are right.
#[test]
fn what_no_machine_runs_is_refused() {
    let migrate = "migrate = { to_nic_above = 9, to_host_below = 1 }\n";
    let marked = migrate.replace("{", "«{").replace("}", "}»");
    let names = |count: usize| (0..count).map(|at| format!("'e{at}', ")).collect::<String>();
    let many = |count| format!("[[l3]]\ninterfaces = [{}]\n", names(count));
    let relay = |path: &str| RELAY.replace("'tcp://[::1]:1'", path);
    let long = "x".repeat(95);
    for (marked, words) in [
        (format!("{L2}path = 'tcx'\n{marked}"), &["packet sockets", "xdp-native"][..]),
        (format!("{NAT}path = «'af-packet'»\n"), &["`address`", "reset"]),
        (format!("{}path = «'tcx'»\n", many(65)), &["at most 64", "has 65"]),
        (format!("[process]\nstats_socket = «''»\n{RELAY}"), &["cannot be the path", "/run"]),
        (
            format!("[process]\nstats_socket = «'/x{long}'»\n{RELAY}"),
            &["too long by 2 bytes", "PID.new"],
        ),
        (format!("[process]\nmetrics = «'unix:/x{long}'»\n{RELAY}"), &["too long by 2 bytes"]),
        (relay("«\"unix:/a\\u0000b\"»"), &["cannot be the path"]),
        (relay("«'unix:/a/'»"), &["cannot be the path", "of a file"]),
        (format!("[process]\nstats_socket = «'/a/..'»\n{RELAY}"), &["cannot be the path"]),
        (
            format!("[process]\nlog_file = «'/none/'»\n{RELAY}log = 'each'\n"),
            &["which is a folder"],
        ),
        (relay("«'tcp://[fe80::1]:1'»"), &["%2"]),
        (RELAY.replace("'tcp://[::1]:2'", "«'tcp://[fe80::1]:1'»"), &["number of its interface"]),
        (
            RELAY.replace("'tcp://[::1]:2'", "«[]»")
                + "[[relay.route]]\nnames = 'a.test'\ntls = { pass_through = true }\nto = 'unix:/a'\n\
                   [[relay.route]]\nnames = 'b.test'\ntls = { pass_through = true }\n",
            &["`to` is empty", "all clients"],
        ),
        (format!("{NAT}state = «\"/a\\u0000b\"»\n"), &["`state` cannot be"]),
        (L2.replace("'b'", "«\"b\\u0000\"»"), &["cannot be the name"]),
        (
            RELAY.replace("[::1]:1'", "127.0.0.1:1'")
                + &RELAY.replace("'tcp://[::1]:1'", "«'tcp://[::ffff:127.0.0.1]:1'»"),
            &["overlaps", "relay-1"],
        ),
        (
            format!(
                "{RELAY}[[relay.route]]\nnames = [«'a b'», 'web.test', «'192.0.2.1'», «'[::1]'», «''»]\ntls = {{ pass_through = true }}\n"
            ),
            &["`a b` cannot be the name", "`192.0.2.1` is an address", "web.example"],
        ),
        (
            format!("{RELAY}to_tls = {{ alpn = ['h2', «''», «'{}'»] }}\n", "x".repeat(256)),
            &["1 to 255 bytes"],
        ),
    ] {
        assert_marked(&marked, words);
    }
    for right in [
        format!("{L2}path = 'xdp-native'\n{migrate}"),
        format!("{L2}path = 'tcx'\n"),
        format!("{NAT}address = '192.0.2.1'\npath = 'af-packet'\n"),
        many(64) + "path = 'tcx'\n",
        many(65),
        format!("[process]\nstats_socket = '/{}'\n{RELAY}", "x".repeat(94)),
        relay("'unix:./@a'"),
        relay("'tcp://[fe80::1%2]:1'"),
    ] {
        parse("f", &right).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Goal: what would be accepted without effect is refused. Method: one such value at a time.
#[test]
fn settings_need_an_effect() {
    let to = |to: &str| RELAY.replace("'tcp://[::1]:2'", to);
    for (marked, words) in [
        (
            to("[«'tcp://[::1]:2,weight=3'», { url = 'unix:/a', weight = «2» }, 'unix:/b']"),
            &["the default", "round-robin"][..],
        ),
        (to("«'tcp://[::1]:2,weight=3'»") + "balance = 'first'\n", &["no effect"]),
        (
            format!(
                "{RELAY}[[relay.route]]\nnames = 'a.test'\ntls = {{ pass_through = true }}\nto = «'unix:/a,weight=2'»\n"
            ),
            &["no effect"],
        ),
        (
            to("[«'tcp://0.0.0.0:80'», «'tcp://[::]:80'», «'tcp://[::ffff:0.0.0.0]:80'»]"),
            &["of no host", "127.0.0.1"],
        ),
        (
            to(
                "[«'tcp://224.0.0.1:80'», «'tcp://[ff02::1]:80'», «'tcp://255.255.255.255:80'», «'tcp://[::ffff:224.0.0.1]:80'»]",
            ),
            &["many hosts"],
        ),
        (RELAY.replace("'tcp://[::1]:1'", "«'tcp://239.1.1.1:80'»"), &["of this host"]),
        (format!("[process]\nmetrics = «'[ff02::1]:9100'»\n{RELAY}"), &["one of many hosts"]),
        (to("«'unix:@abs'»"), &["abstract", "./@abs"]),
        (format!("[process]\ntakeover = «'@abs'»\n{RELAY}"), &["abstract"]),
        (
            format!(
                "{RELAY}allow = [«'10.0.0.1/8'», '10.0.0.1', '10.0.0.1/32']\ndeny = «'fd00::1/64'»\nproxy_from = «'10.1.0.0/8'»\n"
            ),
            &["10.0.0.0/8 for the whole network, or 10.0.0.1 for", "fd00::/64"],
        ),
        (format!("{RELAY}deny = «'::ffff:10.0.0.0/104'»\n"), &["form of IPv6"]),
        (format!("{NAT}from = ['10.0.0.0/24', «'10.0.1.1/24'»]\n"), &["10.0.1.0/24"]),
        (format!("{L2}path = 'tcx'\nwaiting = «'spin'»\nsegments = «'refuse'»\n"), &["no effect"]),
        (format!("{L2}path = 'af-xdp'\nsegments = «'cut'»\n"), &["refuse"]),
    ] {
        assert_marked(&marked, words);
    }
    parse("f", &format!("{L2}path = 'af-xdp'\nsegments = 'refuse'\n")).unwrap();
    parse("f", &format!("{L2}path = 'af-xdp'\n")).unwrap();
}

/// Goal: a value of the wrong type or range is answered with what to write. Method: lists for values, values for lists, and numbers out of range.
#[test]
fn what_to_write_is_said() {
    let l3 = "[[l3]]\ninterfaces = ['a', 'b']\n";
    for (text, words) in [
        (format!("{NAT}host_share = 300\n"), &["`300`", "from 1 to 100, without quotes"][..]),
        (format!("{NAT}host_share = '50%'\n"), &["from 1 to 100, without quotes"]),
        (format!("{NAT}ports_per_host = 70000\n"), &["from 1 to 65535"]),
        (format!("{NAT}ports_per_host = [5]\n"), &["from 1 to 65535"]),
        (format!("{NAT}table = -1\n"), &["from 1 to 4294967295"]),
        (format!("{NAT}table = 18446744073709551615\n"), &["from 1 to 4294967295"]),
        (format!("{RELAY}check = {{ rise = 0 }}\n"), &["from 1 to 4294967295"]),
        (
            format!("{RELAY}message_max = 0\nframed = 'varint'\n"),
            &["a whole number from 1, without"],
        ),
        (format!("{NAT}address = '10.0.0.1/24'\n"), &["an address of IPv4, without a prefix"]),
        (format!("{NAT}address = ['10.0.0.1']\n"), &["without brackets"]),
        (NAT.replace("['a']", "'a'"), &["put it in brackets, as a list"]),
        (NAT.replace("['a']", "5"), &["`5`: put it in brackets"]),
        (NAT.replace("'b'", "['b']"), &["one value, without brackets"]),
        (NAT.replace("'b'", "5"), &["`5`: write a value in quotes"]),
        (format!("{NAT}clamp_mss = 1\n"), &["write true or false, without quotes"]),
        (format!("{NAT}clamp_mss = [true]\n"), &["one value, without brackets"]),
        (format!("{NAT}state = ['/s']\n"), &["one value, without brackets"]),
        (format!("{NAT}from = 5\n"), &["a string, or a list of strings, as in"]),
        (format!("{NAT}path = ['tcx']\n"), &["in quotes, without brackets: \"auto\""]),
        (format!("{NAT}log = true\n"), &["brackets: \"off\", \"each\", \"sources\""]),
        (format!("{RELAY}framed = 4\n"), &["without brackets: \"", "\"varint\""]),
        (format!("{RELAY}bind = '[::1]:1'\n"), &["mean `listen`?"]),
        (format!("{RELAY}maxconn = 5\n"), &["mean `connections_max`?"]),
        (format!("{NAT}mode = 'tcx'\n"), &["mean `path`?"]),
        (format!("{RELAY}route = {{}}\n"), &["two, as in [[relay.route]]"]),
        (format!("{NAT}snat = '192.0.2.1'\n"), &["mean `address`?"]),
        (format!("{NAT}dnat = '10.0.0.1'\n"), &["mean `publish`?"]),
        (format!("{l3}table = 'main'\n"), &["from 1 to 4294967295"]),
    ] {
        assert_refused(&text, words);
    }
}
