//! Large files: the work grows no faster than they do.

use std::cell::Cell;

use vigie::forward::tables::Prefix;

use super::*;
use crate::config::check::overlapping;

const COUNT: usize = 100_000;

thread_local! {
    static READS: Cell<usize> = const { Cell::new(0) };
}

/// A table that counts how often it is read.
#[derive(Debug)]
struct Counted;

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        READS.set(READS.get() + 1);
        RawRelay::deserialize(from).map(|_| Self)
    }
}

/// Reads a table in which something is wrong, and returns the number of mistakes, and how often it was read.
fn read_counted(text: &str) -> (usize, usize) {
    let source = Arc::new(Source::new("f".to_owned(), text.to_owned()));
    let root = DeTable::parse(&source.text).expect("it is TOML").into_inner();
    let (_, table) = root.into_iter().next().expect("a table");
    let (mut origin, mut mistakes) = (Origin::of_flow("f").in_file(&source), Mistakes::default());
    READS.set(0);
    let _: Option<Counted> = tables::read(table, &mut origin, &mut mistakes);
    (mistakes.list().len(), READS.get())
}

/// Goal: a table is not read again for each of its mistakes. Method: tables with so many unknown keys, wrong elements and wrong tables, few of them
/// or all, and the number of times that each is read.
#[test]
fn tables_are_read_a_few_times() {
    let relay = "[t]\nlisten = 'tcp://[::1]:1'\n";
    let to = "to = 'tcp://[::1]:2'\n";
    let keys = |count: usize| (0..count).map(|at| format!("k{at} = 1\n")).collect::<String>();
    let list = |element: &str, count: usize| vec![element; count].join(", ");
    let right = list("'10.0.0.0/8'", COUNT);
    for (text, mistakes, reads) in [
        (format!("{relay}{to}{}", keys(COUNT)), 100, 1),
        (format!("{relay}{to}{}", keys(99)), 99, 2),
        (format!("{relay}to = [{}]\n", list("'x'", COUNT)), 100, 1),
        (format!("{relay}to = [{}]\n", list("{}", COUNT)), 100, 1),
        (format!("{relay}{to}allow = [{right}, {}]\n", list("'x'", 99)), 99, 2),
        (format!("{relay}{to}{}", "[[t.route]]\n".repeat(COUNT)), 100, 1),
        (
            format!("{relay}{to}{}", "[[t.route]]\nnames = [5, 5]\ntls = { x = 1 }\n".repeat(33)),
            99,
            2,
        ),
        // Once for each known key.
        (format!("{relay}{to}deny = [{right}]\nmode = 5\nlog = 5\nidle = 5\n"), 3, 4),
    ] {
        assert_eq!(read_counted(&text), (mistakes, reads), "{}", &text[..200]);
    }
}

/// Goal: the networks of inside hosts are compared with few others, and those that overlap are named. Method: as many as fit a file, of which
/// two overlap others, with the number of comparisons; and lists drawn from 500 seeds, compared with all pairs.
#[test]
fn many_networks_are_compared() {
    let host = |at: usize| {
        let [.., a, b, c] = u32::try_from(at).expect("it is small").to_be_bytes();
        format!("10.{a}.{b}.{c}")
    };
    let hosts: Vec<_> = (0..COUNT).map(host).collect();
    assert_marked_quietly(&format!(
        "[[nat]]\ninside = ['a']\noutside = 'b'\nports = '1-60000'\nports_per_host = 1\nfrom = ['{}',\n«'10.0.0.9'»,\n«'10.0.0.0/28'»]\n",
        hosts.join("', '")
    ));

    let compared = |texts: &[String]| {
        let networks: Vec<Prefix> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut count = 0;
        let found = overlapping(&networks, |outer, inner| {
            count += 1;
            outer.contains(inner)
        });
        (networks, found, count)
    };
    let (_, found, count) = compared(&hosts);
    assert!(found.is_empty() && count <= 2 * COUNT, "{found:?}: {count} comparisons");
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let texts: Vec<_> =
            (0..8).map(|_| format!("{}/{}", host(rng.usize(..64)), rng.u8(26..=32))).collect();
        let (networks, found, count) = compared(&texts);
        assert!(count <= 2 * networks.len(), "{count} comparisons");
        for (at, one) in networks.iter().enumerate() {
            let holds = |other: &Prefix| {
                other.contains(one.address()) && other.length_bits() <= one.length_bits()
            };
            let others = networks.iter().enumerate().filter(|(other, _)| *other != at);
            let is_in = others
                .clone()
                .any(|(other, network)| holds(network) && (network != one || other < at));
            let is_found = found.iter().any(|(first, second)| {
                [*first, *second].contains(&at)
                    && holds(&networks[first + second - at])
                    && (networks[*first] != networks[*second] || at == *second)
            });
            assert_eq!(is_found, is_in, "{one} of {texts:?}: {found:?}");
        }
    }
}

/// As [`assert_marked`], of lines too long to be shown.
#[track_caller]
fn assert_marked_quietly(marked: &str) {
    let text = marked.replace(['«', '»'], "");
    let error = parse("f", &text).expect_err("it is wrong");
    let lines = marked.lines().zip(1..).filter(|(line, _)| line.contains('«'));
    let expected: Vec<_> = lines.map(|(_, number)| format!("f, line {number}, ")).collect();
    let problems = error.problems();
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, place) in problems.iter().zip(&expected) {
        assert!(problem.starts_with(place), "{problem} is not at {place}");
    }
}
