//! The dependencies that a `Cargo.toml` lists: as much of TOML as manifests use for them.

use crate::tree::lines;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Normal,
    Build,
    Dev,
    Workspace,
}

/// An entry of a table of dependencies.
pub(crate) struct Dependency<'t> {
    pub(crate) table: Table,
    /// The crate that is meant, also if it is renamed.
    pub(crate) package: &'t str,
    pub(crate) line: usize,
    /// The line right above is a comment.
    pub(crate) has_comment: bool,
    /// The version comes from the table of the workspace.
    pub(crate) is_inherited: bool,
    pub(crate) is_path: bool,
}

impl<'t> Dependency<'t> {
    /// Takes in `key = value` pairs, however they are laid out.
    fn read(&mut self, text: &'t str) {
        self.is_inherited |= text.contains("workspace = true");
        self.is_path |= text.contains("path = ");
        if let Some((_, renamed)) = text.split_once("package = \"") {
            self.package = renamed.split('"').next().unwrap_or(renamed);
        }
    }
}

/// What the lines after a header are.
enum Section {
    /// One dependency a line.
    Entries(Table),
    /// Further keys of the dependency that the header names.
    Entry,
    Other,
}

pub(crate) fn package_name(manifest: &str) -> Option<&str> {
    let (_, package) = manifest.split_once("[package]")?;
    package.lines().find_map(|line| line.strip_prefix("name = "))?.split('"').nth(1)
}

pub(crate) fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found: Vec<Dependency<'_>> = Vec::new();
    let mut section = Section::Other;
    let mut above = "";
    for (line, text) in lines(manifest) {
        let has_comment = above.starts_with('#');
        above = text;
        let entry = |table, package| Dependency {
            table,
            package,
            line,
            has_comment,
            is_inherited: false,
            is_path: false,
        };
        if let Some(header) = text.strip_prefix('[') {
            let header = header.trim_end().trim_end_matches(']');
            let parent = header.rsplit_once('.');
            section = if let Some(table) = table_of(header) {
                Section::Entries(table)
            } else if let Some((Some(table), name)) = parent.map(|(up, name)| (table_of(up), name))
            {
                found.push(entry(table, name));
                Section::Entry
            } else {
                Section::Other
            };
        } else if text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            if let Section::Entries(table) = section {
                let name_end = text.find(['.', ' ', '=']).unwrap_or(text.len());
                found.push(entry(table, &text[..name_end]));
            }
            if let (Section::Entries(_) | Section::Entry, Some(last)) = (&section, found.last_mut())
            {
                last.read(text);
            }
        }
    }
    found
}

/// Returns which dependencies the table with this header lists; `None` if it lists none.
fn table_of(header: &str) -> Option<Table> {
    match header.rsplit('.').next()? {
        "dependencies" if header == "workspace.dependencies" => Some(Table::Workspace),
        "dependencies" => Some(Table::Normal),
        "build-dependencies" => Some(Table::Build),
        "dev-dependencies" => Some(Table::Dev),
        _ => None,
    }
}
