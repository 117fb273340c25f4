//! The loop of all fuzz targets.
//!
//! A target starts from its corpus in `tests/corpus` and mutates it, from one seed (`VIGIE_FUZZ_SEED`), for as long as
//! `VIGIE_FUZZ_SECONDS` says, by default for a number of inputs. An input with a new outcome is kept for further
//! mutation, and written to `VIGIE_FUZZ_SAVE` if that names a folder. A failure prints the seed and the input.

use std::{collections::BTreeSet, env, fs, path::Path};

use fastrand::Rng;

use super::seeds::{number, within_budget};

/// The longest input, in bytes.
const LENGTH_MAX: usize = 4096;

/// Runs a target, whose corpus is in `folder`, over the corpus and its mutations. Returns the outcomes.
pub(crate) fn fuzz(
    folder: &str,
    count: u64,
    run: impl Fn(&[u8]) -> Result<String, String>,
) -> BTreeSet<String> {
    let seed = number("VIGIE_FUZZ_SEED").unwrap_or(1);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let mut files: Vec<_> =
        fs::read_dir(corpus).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let mut inputs: Vec<Vec<u8>> =
        files.iter().map(|file| fs::read(file).expect("a file")).collect();
    assert!(!inputs.is_empty(), "the corpus of {folder} is empty");
    let mut rng = Rng::with_seed(seed);
    let mut outcomes = BTreeSet::new();
    let mut queue = inputs.clone();
    for tried in within_budget(count) {
        let input = queue.pop().unwrap_or_else(|| mutate(&inputs, &mut rng));
        match run(&input) {
            Ok(outcome) => {
                if outcomes.insert(outcome) {
                    save(folder, outcomes.len(), &input);
                    inputs.push(input);
                }
            }
            Err(what) => panic!("{folder}, seed {seed}, input {tried}: {what}\n{input:?}"),
        }
    }
    println!("{folder}: {} outcomes", outcomes.len());
    outcomes
}

fn save(folder: &str, number: usize, input: &[u8]) {
    let Ok(saved) = env::var("VIGIE_FUZZ_SAVE") else { return };
    let saved = Path::new(&saved).join(folder);
    fs::create_dir_all(&saved).expect("a folder");
    fs::write(saved.join(format!("{number:03}")), input).expect("a file");
}

fn mutate(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = inputs[rng.usize(..inputs.len())].clone();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1 if at < bytes.len() => bytes[at] = rng.u8(..),
            2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
            3 => bytes.truncate(at),
            4 => {
                let more: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
                bytes.splice(at..at, more);
            }
            5 => {
                let other = &inputs[rng.usize(..inputs.len())];
                let from = rng.usize(..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let from = rng.usize(..=at);
                let piece: Vec<u8> = bytes[from..at].to_vec();
                bytes.splice(at..at, piece);
            }
        }
        bytes.truncate(LENGTH_MAX);
    }
    bytes
}
