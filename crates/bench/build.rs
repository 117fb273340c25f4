//! Notes which compiler builds the benchmarks, so that each result can name it.

use std::env;
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
    let profile = env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env=VIGIE_BENCH_PROFILE={profile}");
}
