//! Fuzz targets of the shared-memory provider: packets, ring entries, and whole connections.
//!
//! Each target starts from its corpus in `tests/corpus/shm` and mutates it, from one seed, for as long
//! as `VIGIE_FUZZ_SECONDS` says (by default the number of inputs that takes about a second). An input
//! with a new outcome is kept for further mutation, and written to `VIGIE_FUZZ_SAVE` if that names a
//! folder. A failure prints the seed and the input.
//!
//! Ten minutes of each: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-via --test shm_fuzz`.

use std::{collections::BTreeSet, env, fs, path::Path, time::Duration};

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::{
    shm::hostile::{Flood, attack, flood, try_entry, try_packet},
    vi::Reason,
};

const LENGTH_MAX: usize = 4096;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Runs a target over the corpus and its mutations. Returns the outcomes.
fn fuzz(
    target: &str,
    count: u64,
    run: impl Fn(&[u8]) -> Result<String, String>,
) -> BTreeSet<String> {
    let seed = number("VIGIE_FUZZ_SEED").unwrap_or(1);
    let end =
        number("VIGIE_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/shm").join(target);
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let mut inputs: Vec<Vec<u8>> =
        files.iter().map(|file| fs::read(file).expect("a file")).collect();
    assert!(!inputs.is_empty(), "the corpus of {target} is empty");
    let mut rng = Rng::with_seed(seed);
    let mut outcomes = BTreeSet::new();
    let mut tried = 0_u64;
    let mut queue = inputs.clone();
    loop {
        let input = queue.pop().unwrap_or_else(|| mutate(&inputs, &mut rng));
        match run(&input) {
            Ok(outcome) => {
                if outcomes.insert(outcome.clone()) {
                    save(target, outcomes.len(), &input);
                    inputs.push(input);
                }
            }
            Err(what) => panic!("{target}, seed {seed}, input {tried}: {what}\n{input:?}"),
        }
        tried += 1;
        if end.map_or(tried >= count, |end| tried.is_multiple_of(64) && Instant::now() >= end) {
            println!("{target}: {tried} inputs, {} outcomes", outcomes.len());
            return outcomes;
        }
    }
}

fn save(target: &str, number: usize, input: &[u8]) {
    let Ok(folder) = env::var("VIGIE_FUZZ_SAVE") else { return };
    let folder = Path::new(&folder).join(target);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(format!("{number:03}")), input).expect("a file");
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

/// Goal: no bytes on the socket crash the decoder, and an accepted packet encodes to the same bytes.
/// Method: mutated packets.
#[test]
fn packets() {
    let outcomes = fuzz("packet", 200_000, |bytes| {
        let kind = bytes.first().copied().unwrap_or(0).min(9);
        try_packet(bytes).map(|is_valid| format!("{kind} {is_valid}"))
    });
    for kind in 1..=7 {
        assert!(outcomes.contains(&format!("{kind} true")), "no packet of kind {kind} was valid");
        let is_always_valid = !outcomes.contains(&format!("{kind} false"));
        assert!(!is_always_valid, "no packet of kind {kind} was malformed");
    }
}

/// Goal: no accepted entry exceeds any bound. Method: mutated entries.
#[test]
fn entries() {
    let outcomes = fuzz("entry", 400_000, |bytes| {
        let kind = bytes.get(4).copied().unwrap_or(0);
        try_entry(bytes).map(|is_valid| format!("{kind:02x} {is_valid}"))
    });
    let valid_count = outcomes.iter().filter(|outcome| outcome.ends_with("true")).count();
    assert!(valid_count > 12, "only {valid_count} kinds of entries were valid");
}

/// Goal: whatever a connected peer does, it loses at most its own connection: no memory changes that it
/// has no right to, every descriptor ends, and the NIC serves others. Method: mutated attacks.
#[test]
fn connections() {
    let outcomes = fuzz("connection", 1500, |bytes| {
        let level = bytes.first().copied().unwrap_or(0) % 3;
        attack(bytes)
            .map(|outcome| format!("{level} {:?} {}", outcome.broken, outcome.completions.min(9)))
    });
    for what in [
        "DescriptorFailed",
        "PeerDied",
        "an entry of an unknown kind",
        "an entry with more inline data than fits",
        "an entry with data outside the staging area",
        "an entry whose parts contradict each other",
        "an impossible count of consumed entries",
        "a packet that does not belong to a connection",
        "was not asked for",
        "of another length than announced",
    ] {
        assert!(outcomes.iter().any(|outcome| outcome.contains(what)), "no attack ended by {what}");
    }
}

/// Goal: excess of any kind costs the peer its connection, for the right reason. Method: floods.
#[test]
fn floods() {
    for (what, fault) in [
        (Flood::Wakeups, "more bells than sleeps"),
        (Flood::Grants, "more memory granted than is allowed"),
        (Flood::Addresses, "more memory granted than is allowed"),
        (Flood::Unsealed, "a file that is not sealed against shrinking"),
        (Flood::Short, "a file that is too short"),
    ] {
        let outcome = flood(what).unwrap_or_else(|suffered| panic!("{what:?}: {suffered}"));
        assert_eq!(outcome.broken, Some(Reason::PeerFault(fault)), "{what:?}");
    }
}
