//! Notes which compiler builds the benchmarks, so that each result can name it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    let version = version.trim();
    let version = if version.is_empty() { "unknown" } else { version };
    println!("cargo::rustc-env=VIGIE_BENCH_COMPILER={version}");
    // `PROFILE` tells only those with and without optimisation apart; the folder has the name: `measure/build/PACKAGE/out`.
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let profile = out.ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    let profile = profile.to_string_lossy();
    println!("cargo::rustc-env=VIGIE_BENCH_PROFILE={profile}");
}
