//! The rules of the tree that no lint can see, checked over its text.
//!
//! Each rule is a function from a file to the problems it finds there. A rule has two tests: the
//! tree has no such problem, and a planted fault is found. The rules read words, not types: they
//! catch what is forgotten, not what is hidden on purpose.
//!
//! How the tree, manifests and Rust text are read stands in the folder `tidy`.

#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/manifest.rs"]
mod manifest;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/rust_text.rs"]
mod rust_text;
#[expect(dead_code, reason = "a test uses parts of the kit")]
#[path = "kit/skip.rs"]
mod skip;
#[path = "tidy/tree.rs"]
mod tree;

use std::collections::BTreeSet;

use crate::{
    errors::check_causes,
    links::check_links,
    manifest::{Table, dependencies, package_name},
    names::{check_prose, check_type_names},
    rooms::{ROOMS, check_rooms},
    rust_text::{code_of, paths, tokens, without_test_modules},
    tree::{File, documents, exists, lines, manifests, read, rust_files},
};

#[track_caller]
fn assert_clean(files: &[File], check: impl Fn(&File) -> Vec<String>) {
    let problems: Vec<String> = files.iter().flat_map(check).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

// ------------------------------------------------------------------------------ rule: arrows

/// Which crates of the workspace a crate may depend on; `None`: any of them.
///
/// Dev-dependencies are free: a test or an example may need an executor.
const ARROWS: &[(&str, Option<&[&str]>)] = &[
    ("vigie-detect", Some(&[])),
    ("vigie-runtime", Some(&["vigie-detect"])),
    ("vigie-via", Some(&["vigie-detect"])),
    ("vigie-barrier", Some(&["vigie-detect", "vigie-via"])),
    ("vigie-forward", Some(&["vigie-detect", "vigie-via"])),
    ("vigie-macros", Some(&[])),
    ("vigie-ecosystem", Some(&["vigie"])),
    (
        "vigie",
        Some(&[
            "vigie-detect",
            "vigie-runtime",
            "vigie-macros",
            "vigie-via",
            "vigie-barrier",
            "vigie-forward",
        ]),
    ),
    ("vigie-bench", None),
];

fn check_arrows(manifest: &File) -> Vec<String> {
    let Some(package) = package_name(&manifest.text) else { return Vec::new() };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package) else {
        return vec![manifest.problem(1, &format!("`{package}` has no entry in ARROWS"))];
    };
    let Some(allowed) = allowed else { return Vec::new() };
    dependencies(&manifest.text)
        .into_iter()
        .filter(|dependency| matches!(dependency.table, Table::Normal | Table::Build))
        .filter(|dependency| ARROWS.iter().any(|(name, _)| *name == dependency.package))
        .filter(|dependency| !allowed.contains(&dependency.package))
        .map(|dependency| {
            let what = format!("`{package}` must not depend on `{}`", dependency.package);
            manifest.problem(dependency.line, &what)
        })
        .collect()
}

#[test]
fn crates_depend_only_along_the_arrows() {
    assert_clean(&manifests(), check_arrows);
}

/// Finds each way of writing a forbidden dependency, and lets allowed and dev-dependencies pass.
#[test]
fn a_forbidden_arrow_is_found() {
    let manifest = |package: &str, rest: &str| {
        File::new("crates/x/Cargo.toml", &format!("[package]\nname = \"{package}\"\n{rest}"))
    };
    for (package, rest) in [
        ("vigie-detect", "[dependencies]\nvigie-runtime.workspace = true\n"),
        ("vigie-detect", "[dependencies]\nvigie = { path = \"../..\" }\n"),
        ("vigie-via", "[dependencies]\nvigie-runtime = { workspace = true, optional = true }\n"),
        ("vigie-barrier", "[dependencies.vigie-runtime]\nworkspace = true\n"),
        ("vigie-forward", "[target.'cfg(unix)'.dependencies]\nvigie-runtime.workspace = true\n"),
        ("vigie-forward", "[build-dependencies]\nvigie-barrier.workspace = true\n"),
        ("vigie-runtime", "[dependencies]\ninner = { package = \"vigie-via\", path = \"../via\" }"),
        ("vigie", "[dependencies]\nvigie-bench.workspace = true\n"),
        ("vigie-new", ""),
    ] {
        assert_eq!(check_arrows(&manifest(package, rest)).len(), 1, "{package}: {rest}");
    }
    for (package, rest) in [
        ("vigie-runtime", "[dependencies]\nvigie-detect.workspace = true\nslab.workspace = true\n"),
        ("vigie-via", "[dev-dependencies]\nvigie-runtime.workspace = true\n"),
        ("vigie-bench", "[dependencies]\nvigie-runtime.workspace = true\n"),
    ] {
        assert_eq!(check_arrows(&manifest(package, rest)), Vec::<String>::new());
    }
}

// ------------------------------------------------------------------------------ rule: causes

#[test]
fn errors_show_their_causes() {
    let mut files = rust_files();
    // `vigie-bench` prints each cause on a line of its own.
    files.retain(|file| !file.path.starts_with("crates/bench/") && file.path != "tests/tidy.rs");
    assert_clean(&files, check_causes);
}

/// Finds a variant of each form, and lets those pass that show their cause or have none.
#[test]
fn a_hidden_cause_is_found() {
    let of = |text: &str| check_causes(&File::new("crates/x/src/error.rs", text)).len();
    assert_eq!(of("#[error(\"it failed\")]\nFailed(#[from] io::Error),"), 1);
    assert_eq!(
        of(
            "#[error(\"at {place}\")]\nAt {\n    place: u8,\n    #[source]\n    source: io::Error,\n},"
        ),
        1
    );
    assert_eq!(of("#[error(\"it failed: {0}\")]\nFailed(#[from] io::Error),"), 0);
    assert_eq!(of("#[error(transparent)]\nFailed(#[from] io::Error),"), 0);
    assert_eq!(of("#[error(\"broken\")]\nBroken,\n}\n\nstruct Other(#[source] io::Error);"), 0);
}

// ------------------------------------------------------------------------------- rule: rooms

#[test]
fn rooms_need_only_those_before_them() {
    let files = rust_files();
    let problems: Vec<String> =
        ROOMS.iter().flat_map(|rooms| check_rooms(&files, *rooms)).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

/// Returns the problems of a crate with the rooms `low` and `high`, whose files are given by path and text.
fn problems_of_rooms(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> =
        files.iter().map(|(path, text)| File::new(&format!("crates/x/src/{path}"), text)).collect();
    check_rooms(&files, ("crates/x/src/", &["low", "high"]))
}

/// Finds each way of naming what a later room has, with its line, and lets pass what only looks like it.
#[test]
fn an_arrow_to_a_later_room_is_found() {
    let problems = |low: &str| {
        problems_of_rooms(&[
            ("lib.rs", "mod high; mod low; pub use high::Top as Tip;"),
            ("low/mod.rs", "mod leaf; pub use leaf::Leaf;"),
            ("low/leaf.rs", low),
            (
                "high/mod.rs",
                "pub(crate) mod deep; mod same; mod top; pub use {same::same, top::*}; use crate::low::Leaf;",
            ),
            ("high/top.rs", "pub struct Top; impl Top { fn f(leaf: crate::low::Leaf) {} }"),
            ("high/deep.rs", "pub fn f() {}"),
            ("high/same.rs", "pub fn same() {}"),
        ])
    };
    for low in [
        "use crate::high::Top;",
        "use crate::{high::{deep::f}, low::Leaf};",
        "use crate::high; fn g() { high::deep::f() }",
        "use super::super::high::deep as d; fn g() { d::f() }",
        "fn g() { crate::high::deep::f() }",
        "fn g(tip: crate::Tip) {}",
        "pub use crate::high::Top;",
        "use crate::high::same;",
        "mod inner { use super::super::super::high::deep::f; }",
        "#[cfg(not(test))] mod inner { use crate::high::*; }",
    ] {
        let found = problems(low);
        assert_eq!(found.len(), 1, "{low}: {found:?}");
        assert!(found[0].starts_with("crates/x/src/low/leaf.rs:1: "), "{low}: {found:?}");
    }
    for low in [
        "pub struct Leaf;",
        "use crate::low::Leaf; use super::Leaf; use self::inner::High; mod inner { pub struct High; }",
        "// use crate::high::Top;\nconst A: &str = \"crate::high::Top\";",
        "#[cfg(test)] mod tests { use crate::high::Top; }",
        "use other::high::Top; use std::high::deep; fn g() { deep::f() }",
    ] {
        assert_eq!(problems(low), Vec::<String>::new(), "{low}");
    }
    let test = ("low/cases.rs", "use crate::high::Top;");
    let high = ("high/mod.rs", "pub struct Top;");
    assert_eq!(
        problems_of_rooms(&[("low/mod.rs", "#[cfg(test)] mod cases;"), test, high]).len(),
        0
    );
    assert_eq!(problems_of_rooms(&[("low/mod.rs", "mod cases;"), test, high]).len(), 1);
    assert_eq!(problems_of_rooms(&[("low/mod.rs", ""), ("lib.rs", ""), ("attic.rs", "")]).len(), 1);
}

/// Finds circles of four files, also through the re-exports of a `mod.rs`, which is in none; lets three pass.
#[test]
fn a_circle_of_many_files_is_found() {
    let circle = |names: &[&str]| {
        let door = (
            "low/mod.rs".to_owned(),
            names.iter().map(|name| format!("mod {name}; pub use {name}::Of{name};")).collect(),
        );
        let nexts = names.iter().cycle().skip(1);
        let file = |(name, next): (&&str, &&str)| {
            (
                format!("low/{name}.rs"),
                format!("pub struct Of{name}; fn f(a: super::Of{next}) {{}}"),
            )
        };
        let files: Vec<(String, String)> =
            std::iter::once(door).chain(names.iter().zip(nexts).map(file)).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (&**path, &**text)).collect();
        problems_of_rooms(&files)
    };
    assert_eq!(circle(&["a", "b", "c"]), Vec::<String>::new());
    let found = circle(&["a", "b", "c", "d"]);
    assert!(found.len() == 1 && found[0].contains("4 files"), "{found:?}");
    // A `mod.rs` that uses what it hands on is a file like any other.
    let door = "mod a; mod b; pub use self::{a::A, b::B}; struct Top; fn f(a: A, b: B) {}";
    let files = |b: &'static str| {
        let a = ("low/a/mod.rs", "mod deep; pub struct A; use super::Top; use self::deep::f;");
        let deep = ("low/a/deep.rs", "use crate::low::Top; pub fn f() {}");
        problems_of_rooms(&[("low/mod.rs", door), a, ("low/b.rs", b), deep]).len()
    };
    assert_eq!(files("pub struct B; use super::Top;"), 1);
    assert_eq!(files("pub struct B;"), 0);
}

// ------------------------------------------------------------------- rule: the door `crate::sync`

/// What crates that are model-checked may take from `std::sync` anywhere: loom has no part in it.
const SYNC_FREE: &[&str] = &["Arc", "Weak", "OnceLock", "LazyLock", "PoisonError", "TryLockError"];

/// Atomics, locks, threads and thread-locals come from `crate::sync`, which is std or loom.
fn check_sync_door(file: &File) -> Vec<String> {
    let checked = [
        "crates/detect/src/",
        "crates/runtime/src/",
        "crates/via/src/memory/copy.rs",
        "crates/via/src/shm/ring.rs",
        "crates/via/src/shm/sleep.rs",
        "crates/via/src/shm/wakeup.rs",
        "crates/barrier/src/local/absence.rs",
        "crates/barrier/src/local/central.rs",
        "crates/barrier/src/local/tasks.rs",
        "crates/barrier/src/local/wakers.rs",
    ];
    if !checked.iter().any(|folder| file.path.starts_with(folder)) || file.name() == "tests.rs" {
        return Vec::new();
    }
    let is_door = file.path.ends_with("/src/sync.rs") || file.path.contains("/src/sync/");
    let code = code_of(&file.text);
    let tokens = without_test_modules(&tokens(&code));
    let paths = paths(&tokens);
    let mut problems = Vec::new();
    for (line, path) in &paths {
        let path = path.replacen("core::", "std::", 1);
        if !is_door && path.starts_with("std::sync::mpsc") {
            problems.push(file.problem(*line, "std's channels cannot be model-checked"));
        } else if !is_door && reaches_around(&path) {
            problems.push(file.problem(*line, &format!("`{path}` must come from `crate::sync`")));
        }
    }
    let has_own = paths.iter().any(|(_, path)| path == "crate::sync::thread_local");
    for pair in tokens.windows(2) {
        if !is_door && !has_own && pair[0].text == "thread_local" && pair[1].text == "!" {
            let what = "`thread_local!` must come from `crate::sync`";
            problems.push(file.problem(pair[0].line, what));
        }
    }
    problems
}

fn reaches_around(path: &str) -> bool {
    let mut names = path.split("::");
    match (names.next(), names.next(), names.next()) {
        (Some("std"), Some("sync"), name) => name.is_none_or(|name| !SYNC_FREE.contains(&name)),
        (Some("std"), Some("thread"), _) | (Some("loom"), Some(_), _) => true,
        (Some("std"), Some("cell"), name) => name == Some("UnsafeCell"),
        _ => false,
    }
}

#[test]
fn model_checked_crates_use_one_door_for_concurrency() {
    assert_clean(&rust_files(), check_sync_door);
}

/// Finds each way of naming a forbidden item, alone and in nested imports, with its line.
#[test]
fn a_way_around_the_door_is_found() {
    let file = |text: &str| File::new("crates/runtime/src/worker.rs", text);
    for text in [
        "use std::sync::atomic::AtomicBool;",
        "use core::sync::atomic::Ordering;",
        "use std::{fmt, sync::{Arc, Mutex}};",
        "use std::sync::{self, Arc};",
        "use std::sync as s;",
        "use std::sync::*;",
        "use std::thread;",
        "fn f() { ::std::thread::yield_now(); }",
        "struct S { m: std::sync::Condvar }",
        "use std::sync::mpsc;",
        "use std::cell::UnsafeCell;",
        "use loom::sync::Mutex;",
        "thread_local! { static A: u8 = 0; }",
        "#[cfg(not(test))] mod m { use std::thread; }",
    ] {
        assert_eq!(check_sync_door(&file(text)).len(), 1, "{text}");
    }
    for text in [
        "use std::{sync::{Arc, OnceLock}, cell::Cell}; use crate::sync::{Mutex, thread};",
        "// std::thread::spawn\nconst A: &str = \"std::sync::Mutex\"; // use std::thread;",
        "#[cfg(test)]\nmod tests { use std::thread; fn f() { thread::yield_now() } }",
        "#[cfg(all(test, not(loom)))] mod m;",
        "use crate::sync::thread_local; thread_local! { static A: u8 = 0; }",
        "fn f<'a>() -> impl Sized + use<'a> { other::thread::spawn }",
    ] {
        assert_eq!(check_sync_door(&file(text)), Vec::<String>::new(), "{text}");
    }
    let nested = "use std::{\n    fmt,\n    sync::{\n        Arc,\n        RwLock,\n    },\n};";
    assert!(check_sync_door(&file(nested))[0].starts_with("crates/runtime/src/worker.rs:5: "));
    let door = |text: &str| check_sync_door(&File::new("crates/detect/src/sync.rs", text)).len();
    assert_eq!(door("pub(crate) use std::{sync::Mutex, thread, thread_local};"), 0);
    assert_eq!(door("pub(crate) use std::sync::mpsc;"), 0);
}

// ------------------------------------------------------------------------ rule: unsafe modules

const UNSAFE_HEADING: &str = "## Where unsafe code is";

/// Reads the list of files that may hold unsafe code: the bullets that start with a path in
/// backticks, in the section of `ARCHITECTURE.md` with that heading. It may be empty, not missing.
fn unsafe_files(architecture: &str) -> Result<BTreeSet<String>, String> {
    let mut lines = architecture.lines();
    if !lines.any(|line| line.trim_end() == UNSAFE_HEADING) {
        return Err(format!("ARCHITECTURE.md has no section `{UNSAFE_HEADING}`"));
    }
    let is_heading = |line: &&str| line.starts_with("# ") || line.starts_with("## ");
    Ok(lines
        .take_while(|line| !is_heading(line))
        .filter_map(|line| line.trim_start().strip_prefix("- `")?.split_once('`'))
        .map(|(path, _)| path.to_owned())
        .collect())
}

fn unsafe_lines(file: &File) -> Vec<usize> {
    let code = code_of(&file.text);
    tokens(&code).iter().filter(|token| token.text == "unsafe").map(|token| token.line).collect()
}

fn check_unsafe(file: &File, listed: &BTreeSet<String>) -> Vec<String> {
    let is_listed = listed.contains(&file.path);
    match unsafe_lines(file).first() {
        Some(&line) if !is_listed => {
            let what = format!("unsafe code, but `{UNSAFE_HEADING}` does not list this file");
            vec![file.problem(line, &what)]
        }
        None if is_listed => {
            vec![file.problem(1, &format!("no unsafe code, but `{UNSAFE_HEADING}` lists it"))]
        }
        _ => Vec::new(),
    }
}

#[test]
fn unsafe_code_is_where_architecture_says() {
    let architecture = read("ARCHITECTURE.md").expect("ARCHITECTURE.md must exist");
    let listed = unsafe_files(&architecture).unwrap();
    let files = rust_files();
    for path in &listed {
        let exists = files.iter().any(|file| file.path == *path);
        assert!(exists, "ARCHITECTURE.md: `{path}` of `{UNSAFE_HEADING}` is no file");
    }
    assert_clean(&files, |file| check_unsafe(file, &listed));
}

/// Finds unsafe code outside the list, a list that is out of date, and a list that is missing.
#[test]
fn unlisted_unsafe_code_is_found() {
    assert!(unsafe_files("# Architecture\n\n## Threads\n- `a.rs`\n").is_err());
    assert_eq!(unsafe_files("## Where unsafe code is\n\nNowhere.\n"), Ok(BTreeSet::new()));
    let list = "## Where unsafe code is\n\n- `a.rs`: rings\n- b.rs\n\n## Next\n\n- `c.rs`: no\n";
    let listed = unsafe_files(list).unwrap();
    assert_eq!(listed, BTreeSet::from(["a.rs".to_owned()]));

    let problems = |path: &str, text: &str| check_unsafe(&File::new(path, text), &listed).len();
    assert_eq!(problems("a.rs", "fn f() { unsafe { g() } }"), 0);
    assert_eq!(problems("c.rs", "fn f() { unsafe { g() } }"), 1);
    assert_eq!(problems("c.rs", "unsafe impl Send for S {}"), 1);
    assert_eq!(problems("a.rs", "fn f() {}"), 1);
    let words = "#![forbid(unsafe_code)] // unsafe\nconst A: &str = r#\"\"unsafe\"#;";
    assert_eq!(problems("c.rs", words), 0);
}

// ---------------------------------------------------------------------------- rule: citations

/// Reads the keys of the bibliography: its headings of the form `### [key]`.
fn paper_keys(papers: &str) -> BTreeSet<String> {
    papers
        .lines()
        .filter_map(|line| line.strip_prefix("### [")?.trim_end().strip_suffix(']'))
        .map(str::to_owned)
        .collect()
}

/// Citations stand in comments and in printed tables, so the whole text is searched.
fn check_citations(file: &File, keys: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (line, text) in lines(&file.text) {
        for (end, _) in text.match_indices(", §") {
            let Some(start) = text[..end].rfind('[') else { continue };
            let key = &text[start + 1..end];
            let is_key = key.chars().all(|c| c.is_alphanumeric() || c == '-');
            if is_key && !keys.contains(key) {
                problems.push(file.problem(line, &format!("docs/papers.md has no key `{key}`")));
            }
        }
    }
    problems
}

#[test]
fn citations_are_in_the_bibliography() {
    let keys = paper_keys(&read("docs/papers.md").expect("docs/papers.md must exist"));
    assert!(keys.contains("bouge02"));
    assert_clean(&rust_files(), |file| check_citations(file, &keys));
}

/// Finds unknown keys, also behind known ones; the planted text is put together here, so that this
/// file cites nothing itself.
#[test]
fn an_unknown_citation_is_found() {
    let keys = paper_keys("# Papers\n### [known01]\n## [no-key]\n### other\n");
    assert_eq!(keys, BTreeSet::from(["known01".to_owned()]));
    let problems = |text: &str| {
        let text = text.replace('@', "§");
        check_citations(&File::new("a.rs", &text), &keys).len()
    };
    assert_eq!(problems("// [known01, @3.1], see also [known01, @2, @4]"), 0);
    assert_eq!(problems("/// Polls [bougé02, @3.1]."), 1);
    assert_eq!(problems("// [known01, @1] and [no-key, @2, step 1]"), 1);
    assert_eq!(problems("let a = [1, 2]; // [`Server`], 3, @4"), 0);
}

// --------------------------------------------------------------------- rule: names and lengths

/// The longest file: beyond this, what it does has more than one name.
const LINE_COUNT_MAX: usize = 900;

/// Names under which anything could be put, and then is.
const VAGUE_NAMES: &[&str] = &["utils", "common", "helpers", "misc"];

fn check_name_and_length(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let is_source = file.path.starts_with("src/") || file.path.contains("/src/");
    let names = file.path.trim_end_matches(".rs").split('/');
    if is_source && let Some(name) = names.into_iter().find(|name| VAGUE_NAMES.contains(name)) {
        problems.push(file.problem(1, &format!("`{name}` says nothing: split by noun")));
    }
    let count = file.text.lines().count();
    if count > LINE_COUNT_MAX {
        let what = format!("{count} lines, more than {LINE_COUNT_MAX}: split by noun");
        problems.push(file.problem(count, &what));
    }
    problems
}

#[test]
fn files_are_named_by_a_noun_and_short() {
    assert_clean(&rust_files(), check_name_and_length);
}

#[test]
fn a_vague_name_and_a_long_file_are_found() {
    let problems = |path: &str, text: &str| check_name_and_length(&File::new(path, text)).len();
    assert_eq!(problems("crates/detect/src/utils.rs", ""), 1);
    assert_eq!(problems("crates/via/src/common/mod.rs", ""), 1);
    assert_eq!(problems("src/misc.rs", ""), 1);
    assert_eq!(problems("crates/via/tests/common/mod.rs", ""), 0);
    assert_eq!(problems("crates/via/src/memory.rs", &"\n".repeat(LINE_COUNT_MAX)), 0);
    assert_eq!(problems("crates/via/src/memory.rs", &"\n".repeat(LINE_COUNT_MAX + 1)), 1);
}

// ---------------------------------------------------------------------------- rule: unfinished

fn check_unfinished(file: &File) -> Vec<String> {
    let code = code_of(&file.text);
    tokens(&code)
        .windows(2)
        .filter(|pair| ["todo", "unimplemented"].contains(&pair[0].text) && pair[1].text == "!")
        .map(|pair| file.problem(pair[0].line, &format!("`{}!` in the tree", pair[0].text)))
        .collect()
}

#[test]
fn nothing_is_left_unfinished() {
    assert_clean(&rust_files(), check_unfinished);
}

#[test]
fn unfinished_code_is_found() {
    let problems = |text: &str| check_unfinished(&File::new("a.rs", text)).len();
    assert_eq!(problems("fn f() { todo!() }"), 1);
    assert_eq!(problems("fn f() { match a { _ => unimplemented!(\"b\") } }"), 1);
    assert_eq!(problems("fn todo() {} // todo!()\nconst A: &str = \"unimplemented!()\";"), 0);
}

// ------------------------------------------------------------------------------ rule: reasons

/// A dependency that brings a foreign crate into the workspace has a comment right above it that
/// says why. Crates of the workspace, and entries inherited from its table, need none.
fn check_reasons(manifest: &File) -> Vec<String> {
    dependencies(&manifest.text)
        .into_iter()
        .filter(|entry| !entry.is_inherited && !entry.is_path && !entry.has_comment)
        .map(|entry| {
            let what = format!("`{}` needs a comment above it: why do we need it?", entry.package);
            manifest.problem(entry.line, &what)
        })
        .collect()
}

#[test]
fn dependencies_have_a_reason() {
    assert_clean(&manifests(), check_reasons);
}

#[test]
fn a_dependency_without_reason_is_found() {
    let problems = |text: &str| check_reasons(&File::new("Cargo.toml", text)).len();
    assert_eq!(problems("[workspace.dependencies]\n# Keys.\nslab = \"0.4\"\n"), 0);
    assert_eq!(problems("[workspace.dependencies]\nslab = \"0.4\"\n"), 1);
    assert_eq!(problems("[workspace.dependencies]\n# Keys.\nslab = \"0.4\"\nmio = \"1\"\n"), 1);
    assert_eq!(problems("[workspace.dependencies]\n# Keys.\n\nslab = \"0.4\"\n"), 1);
    assert_eq!(problems("[dev-dependencies.slab]\nversion = \"0.4\"\n"), 1);
    assert_eq!(problems("[dependencies]\nslab.workspace = true\n"), 0);
    assert_eq!(problems("[dependencies]\nmio = { workspace = true, optional = true }\n"), 0);
    assert_eq!(problems("[workspace.dependencies]\nvigie = { path = \".\" }\n"), 0);
    assert_eq!(problems("[features]\ndefault = []\n[lints]\nworkspace = true\n"), 0);
}

// ------------------------------------------------------------------------------ rule: features of examples

/// The modules of `vigie` that are there with a feature alone.
const OPTIONAL: [&str; 3] = ["via", "barrier", "forward"];

/// An example that uses such a module has an entry in the manifest, whose `required-features` bring it: else the build
/// without features fails, and so does the command that the README shows.
fn check_features(example: &File, manifest: &str) -> Vec<String> {
    let Some(name) =
        example.path.strip_prefix("examples/").and_then(|path| path.strip_suffix(".rs"))
    else {
        return Vec::new();
    };
    let entries = manifest.split("[[example]]").skip(1);
    let entry = entries.filter_map(|entry| entry.split("\n[").next());
    let entry = entry.filter(|entry| entry.contains(&format!("name = \"{name}\""))).last();
    let required =
        entry.unwrap_or_default().lines().find(|line| line.starts_with("required-features"));
    let required: Vec<&str> = required.unwrap_or_default().split('"').skip(1).step_by(2).collect();
    let brings = |feature: &str, module: &str| {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{feature} = [")));
        // By itself, or by the feature of the same name.
        let means = [format!("\"dep:vigie-{module}\""), format!("\"{module}\"")];
        line.is_some_and(|line| means.iter().any(|means| line.contains(means)))
    };
    let has = |module: &str| required.iter().any(|feature| brings(feature, module));
    OPTIONAL
        .into_iter()
        .filter(|module| example.text.contains(&format!("vigie::{module}::")) && !has(module))
        .map(|module| {
            example.problem(1, &format!("`required-features` do not bring `vigie::{module}`"))
        })
        .collect()
}

#[test]
fn examples_require_the_features_that_they_use() {
    let manifest = read("Cargo.toml").expect("the workspace has a manifest");
    assert_clean(&rust_files(), |file| check_features(file, &manifest));
}

/// What only the commands need: arguments, configuration files, the kernel's routing socket, JSON, durations for people.
const COMMANDS_NEED: [&str; 5] = ["clap", "toml", "netlink-", "serde_json", "humantime"];

/// Returns the features of the facade that begin with `cli-`, if `are_commands`, or the others.
fn facade_features(manifest: &str, are_commands: bool) -> Vec<String> {
    let (_, rest) = manifest.split_once("\n[features]\n").expect("the facade has features");
    let table = rest.split("\n[").next().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(" = [").map(|(name, _)| name));
    names.filter(|name| name.starts_with("cli-") == are_commands).map(str::to_owned).collect()
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns which of the packages that only the commands need come with these features, as cargo resolves them.
fn commands_packages(features: &[String]) -> BTreeSet<String> {
    let tree = std::process::Command::new(cargo())
        .args(["tree", "--offline", "--locked", "-p", "vigie", "-e", "normal", "--prefix", "none"])
        .args(["--no-default-features", "--features", &features.join(","), "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let packages = String::from_utf8_lossy(&tree.stdout).into_owned();
    let names = packages.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    names.filter(|name| COMMANDS_NEED.iter().any(|begin| name.starts_with(begin))).collect()
}

/// Goal: who takes libraries gets no argument parser, no TOML, no netlink and no JSON with them. Method: what cargo resolves for all
/// features but the commands', and for the commands', which bring all of it.
#[test]
fn features_of_libraries_bring_no_command() {
    let version = std::process::Command::new(cargo()).arg("--version").output();
    if version.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        skip::skip("features_of_libraries_bring_no_command", "a cargo that this user may run");
        return;
    }
    let manifest = read("Cargo.toml").expect("the workspace has a manifest");
    let libraries = facade_features(&manifest, false);
    assert!(libraries.len() > 10, "{libraries:?}");
    assert_eq!(commands_packages(&libraries), BTreeSet::new());
    let of_commands = commands_packages(&facade_features(&manifest, true));
    for begin in COMMANDS_NEED {
        let is_there = of_commands.iter().any(|name| name.starts_with(begin));
        assert!(is_there, "{begin}: {of_commands:?}");
    }
}

#[test]
fn an_example_without_its_feature_is_found() {
    let problems = |features: &str, required: &str| {
        let example =
            File::new("examples/one.rs", "use vigie::barrier::Group;\nuse vigie::via::link;\n");
        let entry = format!("[[example]]\nname = \"one\"\n{required}\n[lints]\n");
        check_features(&example, &format!("[features]\n{features}\n{entry}")).len()
    };
    let both = "barrier = [\"via\", \"dep:vigie-barrier\"]";
    assert_eq!(problems(both, "required-features = [\"barrier\"]"), 0);
    assert_eq!(problems(both, ""), 2);
    assert_eq!(
        problems("barrier = [\"dep:vigie-barrier\"]", "required-features = [\"barrier\"]"),
        1
    );
}

// ------------------------------------------------------------------------------- rule: words

/// Returns whether a file is of the product, and no test.
fn is_product(file: &File) -> bool {
    let is_source = file.path.starts_with("src/") || file.path.contains("/src/");
    is_source && !file.path.split('/').any(|part| part.starts_with("tests"))
}

/// Goal: a type's name says which one it is. Method: the types of all product files, by name.
#[test]
fn a_name_stands_for_few_types() {
    let files: Vec<File> = rust_files().into_iter().filter(is_product).collect();
    let problems = check_type_names(&files);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Goal: the rule finds a name of many types, and takes no other line for one. Method: planted types.
#[test]
fn a_name_of_many_types_is_found() {
    let lines = [
        "pub(crate) struct Found<T> {",
        "enum Found {",
        "type Found = u8;",
        "pub trait Found: Sized {",
    ];
    let text =
        lines.map(|line| format!("{line}\n    type Found = u8;\n// struct Found\n")).concat();
    assert!(
        check_type_names(&[File::new("src/a.rs", &text.replacen("Found", "Other", 1))]).is_empty()
    );
    let problems = check_type_names(&[File::new("src/a.rs", &text)]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("Found is the name of 4 types"), "{problems:?}");
}

/// Goal: comments say what they are about. Method: the comments of all product files.
#[test]
fn comments_name_their_subject() {
    let files: Vec<File> = rust_files().into_iter().filter(is_product).collect();
    assert_clean(&files, check_prose);
}

/// Goal: the rule finds a vague word in a comment alone, however it is written. Method: planted lines.
#[test]
fn a_comment_without_subject_is_found() {
    for (line, count) in [
        ("/// Nobody waits.", 1),
        ("let a = 1; // for whoever comes", 1),
        ("let nobody = 1;", 0),
        ("/// The nobodies.", 0),
        ("/// A seat for each queue.", 1),
        ("let seats = 1;", 0),
    ] {
        assert_eq!(check_prose(&File::new("src/a.rs", line)).len(), count, "{line}");
    }
}

// ----------------------------------------------------------------------- rule: files that exist

/// Documents that say where things are. Others may tell of files that are gone.
const MAPS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];

/// A source file that a map names in backticks is one of the tree, perhaps with its folders left out.
fn check_named_files(map: &File, tree: &[File]) -> Vec<String> {
    let exists = |name: &str| {
        tree.iter().any(|file| file.path == name || file.path.ends_with(&format!("/{name}")))
    };
    lines(&map.text)
        .flat_map(|(line, text)| text.split('`').skip(1).step_by(2).map(move |name| (line, name)))
        .filter(|(_, name)| {
            name.ends_with(".rs") && !name.contains(['*', '{', ' ']) && !exists(name)
        })
        .map(|(line, name)| map.problem(line, &format!("`{name}` is no file")))
        .collect()
}

/// Goal: a reader finds the files that the map names. Method: all names of source files in backticks.
#[test]
fn maps_name_files_that_exist() {
    let tree = rust_files();
    let maps = MAPS.map(|path| File::new(path, &read(path).expect("a document of the tree")));
    assert_clean(&maps, |map| check_named_files(map, &tree));
}

/// Goal: the rule finds a file that is gone, and no other. Method: planted names.
#[test]
fn a_name_of_no_file_is_found() {
    let tree = [File::new("crates/x/src/a.rs", "")];
    let map = File::new(
        "MAP.md",
        "`a.rs`, `src/a.rs`, `crates/*/b.rs`, a.rs, `b`\n`b.rs`: no more; `x/a.rs` never was\n",
    );
    assert_eq!(
        check_named_files(&map, &tree),
        ["MAP.md:2: `b.rs` is no file", "MAP.md:2: `x/a.rs` is no file"]
    );
}

/// Goal: links of the documents lead somewhere. Method: all of them, to files and to headings.
#[test]
fn links_lead_to_files_and_headings() {
    let documents = documents();
    assert!(documents.len() > 40, "the walk finds the documents");
    assert_clean(&documents, |document| check_links(document, &documents, exists));
}

/// Goal: the rule finds a link to a file or a heading that is gone, and no other. Method: planted links.
#[test]
fn a_link_to_nothing_is_found() {
    let documents = [
        File::new(
            "docs/a.md",
            "# The `first` one\n[a](b/c.md) [b](#the-first-one) [c](../src/x.rs)\n",
        ),
        File::new(
            "docs/b/c.md",
            "[a](../a.md#the-first-one) [b](https://x.org/y) [c](d.md)\n```\n[d](e.md)\n```\n[e](../a.md#f)\n",
        ),
    ];
    let problems =
        |index: usize| check_links(&documents[index], &documents, |path| path == "src/x.rs");
    assert_eq!(problems(0), Vec::<String>::new());
    assert_eq!(
        problems(1),
        ["docs/b/c.md:1: `d.md` is no file", "docs/b/c.md:5: `../a.md#f` is no heading"]
    );
}
