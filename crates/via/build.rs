//! Says what to install where the provider of verbs is asked for and its libraries are missing. Without `--cfg
//! vigie_verbs` in RUSTFLAGS nothing is looked for.

use std::{env, fs, process::Command};

/// The newest libclang that the generator of `rdma-sys` understands.
const LIBCLANG_MAX: u32 = 15;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    if env::var_os("CARGO_CFG_VIGIE_VERBS").is_none() {
        return;
    }
    for library in ["libibverbs", "librdmacm"] {
        let found = Command::new("pkg-config").args(["--exists", library]).status();
        match found {
            Ok(status) if status.success() => {}
            Ok(_) => fail(&format!("{library} is missing: apt-get install {library}-dev")),
            Err(_) => fail("pkg-config is missing: apt-get install pkg-config"),
        }
    }
    if env::var_os("LIBCLANG_PATH").is_none() {
        check_libclang();
    }
}

/// Looks where Debian and its relatives have it. Elsewhere `LIBCLANG_PATH` says where it is.
fn check_libclang() {
    let versions: Vec<u32> = (6..40).filter(|version| has_libclang(*version)).collect();
    let fitting = versions.iter().rev().find(|version| **version <= LIBCLANG_MAX);
    match (fitting, versions.last()) {
        (_, None) => fail(
            "libclang is missing: apt-get install libclang-14-dev, or set LIBCLANG_PATH to where version 14 or 15 is",
        ),
        (None, Some(version)) => fail(&format!(
            "rdma-sys cannot use libclang {version}: apt-get install libclang-14-dev, and set \
             LIBCLANG_PATH=/usr/lib/llvm-14/lib"
        )),
        (Some(version), Some(newest)) if newest > version => fail(&format!(
            "rdma-sys cannot use libclang {newest}: set LIBCLANG_PATH=/usr/lib/llvm-{version}/lib"
        )),
        _ => {}
    }
}

fn has_libclang(version: u32) -> bool {
    let Ok(files) = fs::read_dir(format!("/usr/lib/llvm-{version}/lib")) else { return false };
    files.flatten().any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libclang.so") || name.starts_with(&format!("libclang-{version}.so"))
    })
}

fn fail(what: &str) {
    println!("cargo::error=`--cfg vigie_verbs`: {what}");
}
