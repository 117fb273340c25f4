//! The methods that need a signal or a thread: their stock detectors conform and keep their promises
//! in edge cases, and planted faults are detected.

mod blocking;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod signals;

use std::process::Command;

use vigie_detect::conformance::{self, Harness, SetupError, SuiteConfig, Violation, World};

/// Runs the suite, and prints how to reproduce a violation.
fn pass<H: Harness>(test: &str, mut factory: impl FnMut(&World) -> Result<H, SetupError>) {
    match conformance::check(&mut factory) {
        Ok(report) => println!("{report}"),
        Err(violation) => {
            let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
            let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let seed = violation.at().seed;
            panic!(
                "{violation}\nat commit {}\nreplay: SIM_SEED={seed} cargo test -p vigie-detect \
                 --test methods {test}\n{violation:?}",
                commit.unwrap_or_default().trim()
            );
        }
    }
}

/// Runs the suite on a detector with a fault. Few seeds, and a short guard for lost events.
fn seen<H: Harness>(mut factory: impl FnMut(&World) -> Result<H, SetupError>) -> Violation {
    let options = SuiteConfig::from_env().seeds(0..8).guard(std::time::Duration::from_secs(2));
    conformance::check_with(&options.stress_waits(200), &mut factory)
        .expect_err("the fault was not seen")
}
