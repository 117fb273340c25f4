//! Rust source as words and paths: enough to see what is written, without a parser.

use crate::tree::lines;

/// Returns the text with comments, strings and characters replaced by spaces, line by line.
pub(crate) fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        if let Some(end) = end_of_non_code(&chars, at) {
            let blank = |c: &char| if *c == '\n' { '\n' } else { ' ' };
            code.extend(chars[at..end].iter().map(blank));
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// Returns the end of the comment, string or character literal that starts at `at`.
fn end_of_non_code(chars: &[char], at: usize) -> Option<usize> {
    let rest = &chars[at..];
    let length = match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_length(rest),
        ['"', ..] => string_length(rest),
        ['\'', '\\', _, after @ ..] => 4 + after.iter().position(|c| *c == '\'')?,
        ['\'', _, '\'', ..] => 3,
        ['b' | 'c', 'r', ..] | ['r', ..] if at == 0 || !is_word(chars[at - 1]) => {
            raw_string_length(rest)?
        }
        _ => return None,
    };
    Some((at + length).min(chars.len()))
}

fn block_comment_length(chars: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < chars.len() {
        match &chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_length(chars: &[char]) -> usize {
    let mut at = 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// `chars` starts with `r`, `br` or `cr`; it is a raw string if hashes and a quote follow.
fn raw_string_length(chars: &[char]) -> Option<usize> {
    let prefix = if chars[0] == 'r' { 1 } else { 2 };
    let hashes = chars[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut close = vec!['"'];
    close.resize(1 + hashes, '#');
    let body = &chars[open + 1..];
    let length = body.windows(close.len()).position(|window| window == close);
    Some(open + 1 + length.map_or(body.len(), |length| length + close.len()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A word, `::`, or any other character of code.
#[derive(Clone, Copy)]
pub(crate) struct Token<'t> {
    pub(crate) text: &'t str,
    pub(crate) line: usize,
}

impl Token<'_> {
    fn is_word(self) -> bool {
        self.text.starts_with(is_word)
    }
}

pub(crate) fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (line, mut rest) in lines(code) {
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            if !first.is_whitespace() {
                found.push(Token { text, line });
            }
            rest = after;
        }
    }
    found
}

/// Leaves out the modules in braces that exist in test builds alone.
pub(crate) fn without_test_modules<'t>(tokens: &[Token<'t>]) -> Vec<Token<'t>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(end) = test_module_end(tokens, at) {
            at = end;
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// `#[cfg(test)] #[more] mod name { .. }`, also with `all(test, ..)`: returns where it ends.
fn test_module_end(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let end = test_attribute_end(tokens, at)?;
    let is_module = is_at(tokens, end, "mod") && is_at(tokens, end + 2, "{");
    is_module.then(|| group_end(tokens, end + 2))
}

/// `#[cfg(test)] #[more]`, also with `all(test, ..)`: returns where the last of them ends.
fn test_attribute_end(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut end = attribute_end(tokens, at)?;
    let words: Vec<&str> = tokens[at..end].iter().map(|token| token.text).collect();
    let is_negated = words.windows(3).any(|words| words == ["not", "(", "test"]);
    if !words.contains(&"cfg") || !words.contains(&"test") || is_negated {
        return None;
    }
    while let Some(next) = attribute_end(tokens, end) {
        end = next;
    }
    Some(end)
}

fn attribute_end(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let is_attribute = is_at(tokens, at, "#") && is_at(tokens, at + 1, "[");
    is_attribute.then(|| group_end(tokens, at + 1))
}

fn is_at(tokens: &[Token<'_>], index: usize, text: &str) -> bool {
    tokens.get(index).is_some_and(|token| token.text == text)
}

/// Returns the index behind the bracket that closes the one at `open`.
fn group_end(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "[" | "(" => depth += 1,
            "}" | "]" | ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// A path that is written somewhere.
pub(crate) struct Written {
    pub(crate) line: usize,
    pub(crate) path: String,
    /// By which name an import is known here; none for a path in code.
    pub(crate) import: Option<Import>,
}

pub(crate) struct Import {
    /// The last name of the path, or the one behind `as`; `*` for a glob.
    pub(crate) name: String,
    /// Some `pub` stands before the `use`.
    pub(crate) is_export: bool,
}

/// Returns every path that is written, with its line; imports are written out one by one.
pub(crate) fn paths(tokens: &[Token<'_>]) -> Vec<(usize, String)> {
    written(tokens).into_iter().map(|written| (written.line, written.path)).collect()
}

/// Like [`paths`], and tells imports from paths in code.
pub(crate) fn written(tokens: &[Token<'_>]) -> Vec<Written> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" {
            let is_export = at > 0 && ["pub", ")"].contains(&tokens[at - 1].text);
            at = import(tokens, at + 1, ("", is_export), &mut found);
        } else if tokens[at].is_word() {
            let line = tokens[at].line;
            let mut path = tokens[at].text.to_owned();
            at += 1;
            while let [separator, name, ..] = &tokens[at..]
                && separator.text == "::"
                && name.is_word()
            {
                path = path + "::" + name.text;
                at += 2;
            }
            found.push(Written { line, path, import: None });
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one tree of an import below `prefix`, and returns the index behind it.
fn import(
    tokens: &[Token<'_>],
    mut at: usize,
    (prefix, is_export): (&str, bool),
    found: &mut Vec<Written>,
) -> usize {
    let mut path = prefix.to_owned();
    let mut line = None;
    let mut name = "";
    while let Some(token) = tokens.get(at) {
        match token.text {
            "::" => {}
            "{" => {
                let end = group_end(tokens, at);
                at += 1;
                while at + 1 < end {
                    // A comma, or a tree, which always ends further on.
                    at = import(tokens, at, (&path, is_export), found).max(at + 1);
                }
                return end;
            }
            "as" => {
                at += 1;
                name = tokens.get(at).map_or("", |token| token.text);
            }
            "self" if !path.is_empty() => {
                line = Some(token.line);
                name = path.rsplit("::").next().unwrap_or_default();
            }
            text if text == "*" || token.is_word() => {
                line = Some(token.line);
                name = text;
                path = if path.is_empty() { text.to_owned() } else { path + "::" + text };
            }
            _ => break,
        }
        at += 1;
    }
    if let Some(line) = line {
        let name = name.to_owned();
        found.push(Written { line, path, import: Some(Import { name, is_export }) });
    }
    at
}

/// The code of a module that a file holds.
pub(crate) struct Module<'t> {
    /// The names of the modules in braces around it, from the outermost in.
    pub(crate) names: Vec<&'t str>,
    pub(crate) tokens: Vec<Token<'t>>,
}

/// Splits the code of a file into that of the file's own module, which is the first, and of those in braces.
pub(crate) fn modules<'t>(tokens: &[Token<'t>]) -> Vec<Module<'t>> {
    let mut found = vec![Module { names: Vec::new(), tokens: Vec::new() }];
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "mod" && is_at(tokens, at + 2, "{") {
            let end = group_end(tokens, at + 2);
            let name = tokens[at + 1].text;
            let inner = tokens.get(at + 3..end - 1).unwrap_or_default();
            found.extend(modules(inner).into_iter().map(|mut module| {
                module.names.insert(0, name);
                module
            }));
            at = end;
        } else {
            found[0].tokens.push(tokens[at]);
            at += 1;
        }
    }
    found
}

/// Returns the names of the modules in files of their own that exist in test builds alone.
pub(crate) fn test_files<'t>(tokens: &[Token<'t>]) -> Vec<&'t str> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let Some(end) = test_attribute_end(tokens, at) else { continue };
        if is_at(tokens, end, "mod") && is_at(tokens, end + 2, ";") {
            found.push(tokens[end + 1].text);
        }
    }
    found
}

/// Keeps words of code on their lines, and drops what only looks like code.
#[test]
fn code_is_told_from_comments_and_literals() {
    for (text, expected) in [
        ("a // no\nb /* no /* no */\n no */ c", "1a 2b 3c"),
        ("a \"no \\\" no\" b \"\\\\\" c b\"no\" d", "1a 1b 1c 1b 1d"),
        ("a r\"no\\\" b r#\"no \" no\"# c br##\"no\"# no\"## d", "1a 1b 1c 1d"),
        ("for \"no\" r#type", "1for 1r 1type"),
        ("'n' '\\'' '\"' '\\u{6e}' b'n' x", "1b 1x"),
        ("fn f<'a>(x: &'a str) -> &'static str", "1fn 1f 1a 1x 1a 1str 1static 1str"),
        ("\"no\nno\" a", "2a"),
        ("a \"no end", "1a"),
    ] {
        let code = code_of(text);
        let words = tokens(&code).into_iter().filter(|token| token.is_word());
        let words: Vec<String> =
            words.map(|token| format!("{}{}", token.line, token.text)).collect();
        assert_eq!(words.join(" "), expected, "{text}");
    }
}

/// Writes out nested imports, and paths in expressions.
#[test]
fn paths_are_written_out() {
    for (text, expected) in [
        ("use a::{self, b::{C as D, *}, e};", "1a 1a::b::C 1a::b::* 1a::e"),
        ("use ::a::b;\nuse c as d;", "1a::b 2c"),
        ("x(a::b(), ::c::d);", "1x 1a::b 1c::d"),
        ("use {a::b, c};", "1a::b 1c"),
        ("use a::{\n    b,\n    c,\n};", "2a::b 3a::c"),
        ("fn f() -> impl A + use<> {}", "1fn 1f 1impl 1A"),
    ] {
        let paths = paths(&tokens(text));
        let paths: Vec<String> = paths.iter().map(|(line, path)| format!("{line}{path}")).collect();
        assert_eq!(paths.join(" "), expected, "{text}");
    }
}
