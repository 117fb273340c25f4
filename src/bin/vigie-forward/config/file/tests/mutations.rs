//! Configurations that were changed at random.

use super::*;

/// Values of all types.
const VALUES: [&str; 14] = [
    "5",
    "-1",
    "1.5",
    "true",
    "1979-05-27",
    "''",
    "'x'",
    "'tcp://[::1]:1'",
    "[]",
    "[5, 'x', 5]",
    "[[]]",
    "{}",
    "{ a = {} }",
    "[{}, { url = 5 }]",
];

/// The example with everything, and those of the guide.
fn examples() -> Vec<&'static str> {
    let guide = include_str!("../../../../../../docs/guide/forwarding.md");
    let blocks = guide.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.chain([ALL]).collect()
}

/// Changes some lines: without them, twice, in another place, or with another value or key.
fn mutated(text: &str, rng: &mut fastrand::Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..rng.usize(1..8) {
        if lines.is_empty() {
            break;
        }
        let (at, other) = (rng.usize(..lines.len()), rng.usize(..lines.len()));
        let value = VALUES[rng.usize(..VALUES.len())];
        match rng.u8(..7) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(other, lines[at].clone()),
            2 => lines.swap(at, other),
            3 => lines[at] = lines[at].replacen('[', "", 1),
            4 => lines[at] = lines[at].replacen('"', "'", 1),
            5 => {
                if let Some((key, _)) = lines[at].split_once(" = ") {
                    lines[at] = format!("{key} = {value}");
                }
            }
            _ => {
                let keys = lines[other].split_once(" = ").map(|(key, _)| key.trim().to_owned());
                lines[at] = format!("{} = {value}", keys.unwrap_or_else(|| "x".to_owned()));
            }
        }
    }
    lines.join("\n") + if rng.bool() { "\n" } else { "" }
}

/// Goal: whatever a file says, it is read or refused without a panic, and each error has a line of the file. Method: examples changed at random, from 4000
/// seeds.
#[test]
fn every_error_has_a_line() {
    let (examples, mut wrong) = (examples(), 0);
    for seed in 0..4000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let text = mutated(examples[rng.usize(..examples.len())], &mut rng);
        let Err(error) = parse("f", &text) else { continue };
        wrong += 1;
        assert!(!error.problems().is_empty());
        let _ = error.to_string();
        let count = text.lines().count().max(1);
        for problem in error.problems() {
            if problem.starts_with("f: there is no flow") {
                continue;
            }
            let rest = problem.strip_prefix("f, line ");
            let number = rest.and_then(|rest| rest.split_once(", ")?.0.parse::<usize>().ok());
            assert!(
                number.is_some_and(|number| (1..=count).contains(&number)),
                "seed {seed}: {problem}\n{text}"
            );
        }
    }
    assert!(wrong > 2000, "{wrong} files were refused");
}
