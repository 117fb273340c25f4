//! Rooms: the folders and files directly below a crate's `src`, in an order, and the arrows between their files.
//!
//! An arrow goes from a file to the one that has what it names. A name is looked up as the compiler does it:
//! `crate::`, `self::` and `super::` begin at a module, any other path at a module below or at an imported one. From there
//! each name leads to a module below, or to what an import of that module stands for, `pub` or not. So what names
//! `crate::room::Item` points to the file behind the re-export of the room's `mod.rs`, and a `mod.rs` that does no more than
//! re-export is in no circle. An import of a module has no arrow of its own; the paths that go through it have.
//!
//! What is not seen: methods, which have no path. A file that calls what another one has added to a type (`impl Type` in a file of
//! its own) has no arrow for that. Test modules have no arrows: they may use all that is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    rust_text::{Written, code_of, modules, test_files, tokens, without_test_modules, written},
    tree::File,
};

/// The sources of a crate, and its rooms in their order.
pub(crate) type Rooms<'r> = (&'r str, &'r [&'r str]);

/// The most files that may need each other.
const CIRCLE_MAX: usize = 3;

/// A module is known by its path, from the crate's root on; the root has none.
type Path = Vec<String>;

struct Module {
    /// The index of the file that holds it.
    file: usize,
    written: Vec<Written>,
    /// What is defined there: the word behind each keyword that defines something.
    defined: BTreeSet<String>,
}

struct Crate<'f> {
    files: Vec<&'f File>,
    modules: BTreeMap<Path, Module>,
}

/// An arrow to the file with this index.
struct Arrow {
    line: usize,
    to: usize,
    /// The file only hands the name on, and does not use it itself.
    is_handed_on: bool,
}

/// The rooms of each crate that has some: a room needs itself and those before it, and no others. The module's documentation
/// says how that is found out.
pub(crate) const ROOMS: &[Rooms<'_>] = &[
    (
        "crates/detect/src/",
        &[
            "setters",
            "sync",
            "error",
            "fork",
            "clock",
            "budget",
            "request",
            "detector",
            "policy",
            "builtin",
            "network",
            "server",
            "waiting",
            "engine",
            "detectors",
            "net",
            "testing",
            "loom_exports",
            "docs",
        ],
    ),
    (
        "crates/runtime/src/",
        &[
            "sync",
            "panics",
            "refusal",
            "tokio_context",
            "no_tokio_context",
            "lane",
            "parking",
            "kernel_help",
            "options",
            "task_cell",
            "stack",
            "json",
            "measure",
            "context",
            "blocking_pool",
            "dump",
            "flavor",
            "handle",
            "metrics",
            "runtime",
            "embedded",
            "task",
            "builder",
            "simulation",
            "time",
            "signal",
            "io",
            "fs",
            "process",
        ],
    ),
    (
        "crates/via/src/",
        &[
            "sync",
            "auth",
            "local_socket",
            "spinning",
            "memory",
            "link",
            "datagram",
            "world",
            "slots",
            "vi",
            "nic",
            "conformance",
            "protocol",
            "shm",
            "sim",
            "software_nic",
            "udp",
            "ether",
            "verbs",
            "message",
            "loom_exports",
        ],
    ),
    (
        "crates/barrier/src/",
        &[
            "sync",
            "group",
            "schedule",
            "packet",
            "reduction",
            "error",
            "deadline",
            "algorithm",
            "checker",
            "logp",
            "member",
            "local",
            "net",
            "cluster",
            "loom_exports",
        ],
    ),
    (
        "crates/forward/src/",
        &[
            "enums",
            "accessors",
            "error",
            "drop_reason",
            "cost",
            "model",
            "simulation",
            "packet",
            "tables",
            "icmp",
            "stages",
            "pipeline",
            "host",
            "bpf",
            "nic",
            "relay",
            "messages",
        ],
    ),
    (
        "crates/bench/src/",
        &[
            "clock",
            "compute",
            "counting",
            "statistics",
            "schedulers",
            "watch",
            "error",
            "host",
            "inside",
            "report",
            "process",
            "background",
            "server",
            "client",
            "system",
            "mix",
            "workload",
            "runner",
            "cases",
            "idle",
            "interrupts",
            "pending",
            "reaction",
            "switches",
            "timers",
            "waits",
            "drawn",
            "repository",
            "virtual_time",
            "worlds",
            "turns",
            "soak",
            "files",
            "starts",
            "http",
            "loads",
            "slowdown",
            "messages",
            "barrier",
            "cluster",
            "forward",
            "goals",
            "child",
            "cli",
        ],
    ),
];

/// Returns the problems of one crate: files without a room, arrows to a later room, circles of too many files.
pub(crate) fn check_rooms(files: &[File], (folder, rooms): Rooms<'_>) -> Vec<String> {
    let krate = Crate::read(files, folder);
    let mut problems = Vec::new();
    let mut places = Vec::new();
    for file in &krate.files {
        let name = room_of(file, folder);
        let place = rooms.iter().position(|room| *room == name);
        if place.is_none() && !is_root(file, folder) {
            problems.push(file.problem(1, &format!("`{name}` is no room of ROOMS")));
        }
        // The root comes last: it hands on what the rooms have.
        places.push(place.unwrap_or(rooms.len()));
    }
    let mut needed = vec![BTreeSet::new(); krate.files.len()];
    for (from, file) in krate.files.iter().enumerate() {
        let mut lines = BTreeSet::new();
        for arrow in krate.arrows(from) {
            if places[arrow.to] > places[from] && lines.insert((arrow.line, arrow.to)) {
                let (own, other) = (room_of(file, folder), &krate.files[arrow.to].path);
                let what = format!("`{own}` must not need `{other}`, of a later room");
                problems.push(file.problem(arrow.line, &what));
            }
            if !arrow.is_handed_on && arrow.to != from {
                needed[from].insert(arrow.to);
            }
        }
    }
    for circle in circles(&needed) {
        if circle.len() > CIRCLE_MAX {
            let names: Vec<&str> = circle.iter().map(|&index| &*krate.files[index].path).collect();
            let what = format!("{} files need each other: {}", names.len(), names.join(", "));
            problems.push(krate.files[circle[0]].problem(1, &what));
        }
    }
    problems
}

/// Returns the first part of the file's path below `src`, without an ending.
fn room_of<'f>(file: &'f File, folder: &str) -> &'f str {
    let path = file.path.strip_prefix(folder).unwrap_or(&file.path);
    let first = path.split('/').next().unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(first)
}

fn is_root(file: &File, folder: &str) -> bool {
    file.path.strip_prefix(folder).is_some_and(|path| ["lib.rs", "main.rs"].contains(&path))
}

/// Returns the path of the module that a file holds.
fn module_of(file: &File, folder: &str) -> Path {
    let path = file.path.strip_prefix(folder).unwrap_or(&file.path).trim_end_matches(".rs");
    let mut names: Path = path.split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|name| name == "mod") || is_root(file, folder) {
        names.pop();
    }
    names
}

impl<'f> Crate<'f> {
    /// Reads the files below `folder`, but those that exist in test builds alone.
    fn read(files: &'f [File], folder: &str) -> Self {
        let files: Vec<&File> = files.iter().filter(|file| file.path.starts_with(folder)).collect();
        let mut only_tests = BTreeSet::new();
        for file in &files {
            let (code, path) = (code_of(&file.text), module_of(file, folder));
            for name in test_files(&tokens(&code)) {
                only_tests.insert([&path[..], &[name.to_owned()]].concat());
            }
        }
        let is_test = |file: &File| {
            let path = module_of(file, folder);
            file.name() == "tests.rs" || only_tests.iter().any(|test| path.starts_with(test))
        };
        let files: Vec<&File> = files.into_iter().filter(|file| !is_test(file)).collect();
        let mut found = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            let (code, path) = (code_of(&file.text), module_of(file, folder));
            for module in modules(&without_test_modules(&tokens(&code))) {
                let names = module.names.iter().map(|name| (*name).to_owned());
                let path: Path = path.iter().cloned().chain(names).collect();
                let defining =
                    ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];
                let defined =
                    module.tokens.windows(2).filter(|pair| defining.contains(&pair[0].text));
                let defined = defined.map(|pair| pair[1].text.to_owned()).collect();
                let module = Module { file: index, written: written(&module.tokens), defined };
                found.insert(path, module);
            }
        }
        Self { files, modules: found }
    }

    /// Returns the arrows of a file.
    fn arrows(&self, from: usize) -> Vec<Arrow> {
        let mut arrows = Vec::new();
        for (path, module) in self.modules.iter().filter(|(_, module)| module.file == from) {
            let is_used = |name: &str| {
                let mut in_code = module.written.iter().filter(|written| written.import.is_none());
                in_code.any(|written| written.path.split("::").next() == Some(name))
            };
            for written in &module.written {
                let Some(target) = self.resolve(path, &written.path, DEPTH_MAX) else { continue };
                if target.is_module {
                    // An import, or the place behind a `pub(in ..)`.
                    continue;
                }
                let is_handed_on = written
                    .import
                    .as_ref()
                    .is_some_and(|import| import.is_export && !is_used(&import.name));
                arrows.push(Arrow { line: written.line, to: target.file, is_handed_on });
            }
        }
        arrows
    }

    /// Finds the file that has what `written` names in the module at `from`; `None` if that is not of this crate.
    fn resolve(&self, from: &Path, written: &str, depth: u32) -> Option<Target> {
        let mut names = written.split("::").peekable();
        let mut at = from.clone();
        match *names.peek()? {
            "crate" => {
                names.next();
                at.clear();
            }
            "self" => {
                names.next();
            }
            "super" => {}
            first => {
                // One name alone is of the module itself, or of none.
                let is_path = written.contains("::");
                let is_here =
                    is_path && (self.has(&at, first) || self.import(&at, first).is_some());
                if !is_here {
                    return None;
                }
            }
        }
        while let Some(name) = names.next() {
            if name == "super" {
                at.pop();
            } else if self.has(&at, name) && (names.peek().is_some() || !self.has_item(&at, name)) {
                at.push(name.to_owned());
            } else {
                return self.find(&at, name, names.collect(), depth);
            }
        }
        let file = self.modules.get(&at)?.file;
        Some(Target { file, is_module: true })
    }

    /// Finds what `name` is in the module at `at`, which has no module of that name, and what `rest` is in it.
    fn find(&self, at: &Path, name: &str, rest: Vec<&str>, depth: u32) -> Option<Target> {
        let module = self.modules.get(at)?;
        let here = Target { file: module.file, is_module: false };
        if module.defined.contains(name) || name == "*" || depth == 0 {
            return Some(here);
        }
        if let Some(import) = self.import(at, name) {
            // What another crate has is no file of this one.
            let path = [&[import], &rest[..]].concat().join("::");
            return self.resolve(at, &path, depth - 1);
        }
        for written in &module.written {
            let Some(import) = &written.import else { continue };
            let Some(all) = written.path.strip_suffix("::*") else { continue };
            let defines = |target: &Target| {
                let mut modules = self.modules.values();
                modules.any(|one| one.file == target.file && one.defined.contains(name))
            };
            if import.name == "*"
                && let Some(target) = self.resolve(at, &format!("{all}::{name}"), depth - 1)
                && defines(&target)
            {
                return Some(target);
            }
        }
        Some(here)
    }

    /// Returns whether the module at `at` has an item of that name, beside a module: `same::same`, handed on.
    fn has_item(&self, at: &Path, name: &str) -> bool {
        self.import(at, name).is_some_and(|path| path.ends_with(&format!("{name}::{name}")))
    }

    fn has(&self, at: &Path, name: &str) -> bool {
        self.modules.contains_key(&[&at[..], &[name.to_owned()]].concat())
    }

    /// Returns what the name stands for that the module at `at` imports.
    fn import(&self, at: &Path, name: &str) -> Option<&str> {
        let mut written = self.modules.get(at)?.written.iter();
        let found = written.find(|written| {
            let import = written.import.as_ref();
            import.is_some_and(|import| import.name == name && written.path != name)
        });
        found.map(|written| &*written.path)
    }
}

/// An import that leads to another one, and so on: no chain is longer.
const DEPTH_MAX: u32 = 8;

struct Target {
    file: usize,
    /// A module itself, and nothing in it.
    is_module: bool,
}

/// Returns the sets of files that can reach each other, each in the order of the files.
fn circles(needed: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..needed.len())
        .map(|from| {
            let mut reached = BTreeSet::new();
            let mut next = vec![from];
            while let Some(at) = next.pop() {
                next.extend(needed[at].iter().filter(|to| reached.insert(**to)));
            }
            reached
        })
        .collect();
    let circle = |from: usize| -> Vec<usize> {
        reached[from].iter().copied().filter(|&to| reached[to].contains(&from)).collect()
    };
    let circles: BTreeSet<Vec<usize>> = (0..needed.len()).map(circle).collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}
