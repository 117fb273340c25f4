//! The report of a seed that fails.

use std::{env, path::Path, process::Command};

use crate::sync::thread;

/// Variables that name the commit, where no repository is at hand: ours, GitHub's and GitLab's.
const COMMIT_VARIABLES: [&str; 3] = ["VIGIE_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA"];

/// Returns the seed, the commit if it is known, and the command that runs the calling test with this seed.
pub(super) fn report(seed: u64) -> String {
    let commit = commit().map(|commit| format!(" at commit {commit}")).unwrap_or_default();
    format!("seed {seed} fails{commit}: replay it with `{}`", command(seed))
}

/// Returns the commit that the environment names, or else that of the present directory.
pub(super) fn commit() -> Option<String> {
    let named = COMMIT_VARIABLES.into_iter().find_map(|name| env::var(name).ok());
    if named.as_ref().is_some_and(|commit| !commit.is_empty()) {
        return named;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit} with changes") })
}

/// Returns the command that runs the calling test with one seed.
pub(super) fn command(seed: u64) -> String {
    match test_name() {
        Some(test) => {
            let package = env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}"));
            let release = if cfg!(debug_assertions) { "" } else { " --release" };
            let package = package.unwrap_or_default();
            format!("VIGIE_SEED={seed} cargo test{release}{package} {test} -- --exact")
        }
        None => format!("VIGIE_SEED={seed} {}", program_name()),
    }
}

/// Returns the name of this program, without the hash that cargo appends.
pub(super) fn program_name() -> String {
    let program = env::args().next().unwrap_or_default();
    let stem = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or_else(|| stem.clone(), |(name, _)| name.to_owned())
}

/// Returns the name of the test that the calling thread runs.
pub(super) fn test_name() -> Option<String> {
    thread::current().name().filter(|name| *name != "main").map(str::to_owned)
}
