//! The files of the tree.

use std::{fs, path::Path};

/// A file; `path` is relative to the workspace, with `/`.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn problem(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Reads one file; `None` if it does not exist.
pub(crate) fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// Reads all Rust sources, in the order of their paths.
pub(crate) fn rust_files() -> Vec<File> {
    let files = files_named(|name| name.ends_with(".rs"));
    assert!(files.iter().any(|file| file.path == "tests/tidy.rs"), "the walk finds this test");
    files
}

/// Reads the manifests of the workspace and of its crates.
pub(crate) fn manifests() -> Vec<File> {
    let files = files_named(|name| name == "Cargo.toml");
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the walk finds the workspace");
    files
}

/// Reads the documents.
pub(crate) fn documents() -> Vec<File> {
    files_named(|name| name.ends_with(".md"))
}

/// Returns whether a file or folder is there.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists()
}

fn files_named(is_wanted: impl Fn(&str) -> bool) -> Vec<File> {
    let mut files = Vec::new();
    collect(Path::new(env!("CARGO_MANIFEST_DIR")), "", &is_wanted, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(folder: &Path, prefix: &str, is_wanted: &dyn Fn(&str) -> bool, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree can be listed") {
        let entry = entry.expect("a folder of the tree can be listed");
        let name = entry.file_name().into_string().expect("names in the tree are UTF-8");
        let path = format!("{prefix}{name}");
        if entry.file_type().expect("an entry of the tree has a type").is_dir() {
            // Neither build output, nor what belongs to git and other tools.
            if name != "target" && !name.starts_with('.') {
                collect(&entry.path(), &format!("{path}/"), is_wanted, files);
            }
        } else if is_wanted(&name) {
            let text = fs::read_to_string(entry.path()).expect("files of the tree are UTF-8");
            files.push(File { path, text });
        }
    }
}

/// Returns the lines with their numbers, from 1.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}
