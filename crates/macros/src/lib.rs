//! The attributes `#[vigie::main]` and `#[vigie::test]`, re-exported by the facade behind its feature `macros`.
//!
//! They are written without a parser of Rust: the signature is passed on as it is, without `async`, and the body becomes
//! the argument of `block_on`. So they cost a user no crate to compile but this one.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

/// Runs an `async fn main` on a runtime.
///
/// ```ignore
/// #[vigie::main]
/// async fn main() -> std::io::Result<()> {
///     let listener = vigie::net::TcpListener::bind("127.0.0.1:7777").await?;
///     // …
///     Ok(())
/// }
/// ```
///
/// # Arguments
/// - `flavor = "hybrid"` (the default), `"user_level"` or `"kernel_level"`. tokio's names stand for the nearest:
///   `"multi_thread"` for `"hybrid"`, `"current_thread"` for `"user_level"`.
/// - `workers = 4`: the workers of the hybrid flavor; the default is one for each processor. `worker_threads` is the same.
/// - `crate = "vigie"`: the path of the facade, if you renamed it.
///
/// The function panics if the runtime cannot be built.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, Kind::Main).unwrap_or_else(Problem::into_tokens)
}

/// Makes an `async fn` a test, which runs on a runtime of its own.
///
/// ```ignore
/// #[vigie::test]
/// async fn answers() {
///     assert_eq!(vigie::spawn(async { 42 }).await.unwrap(), 42);
/// }
/// ```
///
/// # Arguments
/// Those of [`macro@main`], except that the default is `flavor = "user_level"`: everything on the thread of the test. Beside
/// them:
///
/// - `simulated`: virtual time, in which a sleep of an hour takes no time, on a runtime of `vigie::Flavor::Simulated`.
///   There, tasks, timers, channels, closures of `spawn_blocking` and sockets of TCP and UDP work; Unix sockets, files, child
///   processes and signals are refused with an error.
/// - `seed = 7`: the seed of a simulated test, which decides the order of what is ready at the same time. Default 0. The
///   environment variables `VIGIE_SEED`, which names another one, and `VIGIE_SEEDS`, which names many, override it: see
///   `vigie::simulation::for_each_seed`. A simulated test returns nothing or a `Result`.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, Kind::Test).unwrap_or_else(Problem::into_tokens)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Main,
    Test,
}

/// An error in the input: its place, and its message.
struct Problem(Span, String);

impl Problem {
    fn new(at: Span, text: impl Into<String>) -> Self {
        Self(at, text.into())
    }

    fn into_tokens(self) -> TokenStream {
        let text = TokenTree::Literal(Literal::string(&self.1));
        let mut call: TokenStream = "::core::compile_error!".parse().unwrap_or_default();
        call.extend([
            TokenTree::Group(Group::new(Delimiter::Parenthesis, text.into())),
            TokenTree::Punct(proc_macro::Punct::new(';', proc_macro::Spacing::Alone)),
        ]);
        call.into_iter()
            .map(|mut token| {
                token.set_span(self.0);
                token
            })
            .collect()
    }
}

/// The arguments of an attribute.
struct Arguments {
    flavor: &'static str,
    workers: Option<String>,
    is_simulated: bool,
    seed: String,
    path: String,
}

fn expand(arguments: TokenStream, item: TokenStream, kind: Kind) -> Result<TokenStream, Problem> {
    let arguments = Arguments::parse(arguments, kind)?;
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();

    let is_word = |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(it) if it.to_string() == word);
    let function = tokens.iter().position(|token| is_word(token, "fn"));
    let Some(function) = function else {
        return Err(Problem::new(Span::call_site(), "expected an `async fn`"));
    };
    // Between `async` and `fn` there may be `unsafe` or `extern`, which the compiler then refuses by itself.
    let asynchronous = tokens[..function].iter().rposition(|token| is_word(token, "async"));
    let Some(asynchronous) = asynchronous else {
        return Err(Problem::new(
            tokens[function].span(),
            "expected an `async fn`: the attribute runs its future on a runtime",
        ));
    };
    let parameters = tokens[function..].iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => Some(group),
        _ => None,
    });
    if let Some(parameters) = parameters
        && !parameters.stream().is_empty()
    {
        return Err(Problem::new(
            parameters.span(),
            "a function that the runtime calls takes no arguments",
        ));
    }
    let body = match tokens.pop() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => group,
        _ => return Err(Problem::new(tokens[function].span(), "expected a function with a body")),
    };

    drop(tokens.remove(asynchronous));
    let mut expanded = TokenStream::new();
    if kind == Kind::Test {
        expanded.extend(parse("#[::core::prelude::v1::test]"));
    }
    expanded.extend(tokens);
    expanded.extend([TokenTree::Group(arguments.body(body))]);
    Ok(expanded)
}

/// Parses code of this crate.
fn parse(code: &str) -> TokenStream {
    code.parse().expect("invariant: it is Rust")
}

impl Arguments {
    fn parse(tokens: TokenStream, kind: Kind) -> Result<Self, Problem> {
        let default = if kind == Kind::Main { "Hybrid" } else { "UserLevel" };
        let mut parsed = Self {
            flavor: default,
            workers: None,
            is_simulated: false,
            seed: "0".to_owned(),
            path: "::vigie".to_owned(),
        };
        let mut seed_at = None;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let TokenTree::Ident(name) = token else {
                return Err(Problem::new(token.span(), "expected the name of an argument"));
            };
            let has_value =
                matches!(tokens.peek(), Some(TokenTree::Punct(it)) if it.as_char() == '=');
            let value = if has_value { tokens.nth(1) } else { None };
            parsed.take(&name, value.as_ref(), kind)?;
            if name.to_string() == "seed" {
                seed_at = Some(name.span());
            }
            match tokens.next() {
                None => {}
                Some(TokenTree::Punct(comma)) if comma.as_char() == ',' => {}
                Some(other) => return Err(Problem::new(other.span(), "expected a comma")),
            }
        }
        match seed_at {
            Some(at) if !parsed.is_simulated => {
                Err(Problem::new(at, "only a `simulated` test has a seed"))
            }
            _ => Ok(parsed),
        }
    }

    fn take(&mut self, name: &Ident, value: Option<&TokenTree>, kind: Kind) -> Result<(), Problem> {
        let at = value.map_or_else(|| name.span(), TokenTree::span);
        let text = value.map(ToString::to_string).unwrap_or_default();
        let unquoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let is_count = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit() || it == b'_');
        match (name.to_string().as_str(), unquoted) {
            ("flavor", Some("hybrid" | "multi_thread")) => self.flavor = "Hybrid",
            ("flavor", Some("user_level" | "current_thread")) => self.flavor = "UserLevel",
            ("flavor", Some("kernel_level")) => self.flavor = "KernelLevel",
            ("flavor", _) => {
                return Err(Problem::new(
                    at,
                    "expected `flavor = \"hybrid\"`, `\"user_level\"` or `\"kernel_level\"`",
                ));
            }
            ("workers" | "worker_threads", _) if is_count => self.workers = Some(text),
            ("workers" | "worker_threads", _) => {
                return Err(Problem::new(at, "expected a number of workers"));
            }
            ("simulated", _) if kind == Kind::Test && value.is_none() => self.is_simulated = true,
            ("seed", _) if kind == Kind::Test && is_count => self.seed = text,
            ("crate", Some(path)) => path.clone_into(&mut self.path),
            (other, _) => {
                let known = match kind {
                    Kind::Main => "`flavor`, `workers` and `crate`",
                    Kind::Test => "`flavor`, `workers`, `simulated`, `seed` and `crate`",
                };
                let problem =
                    format!("`{other}` is no argument, or has no such value: there are {known}");
                return Err(Problem::new(name.span(), problem));
            }
        }
        Ok(())
    }

    /// Returns the function's new body.
    fn body(&self, body: Group) -> Group {
        let Self { flavor, workers, is_simulated, seed, path } = self;
        // The names of this code cannot be seen from the body, which is a block of its own before them.
        // A simulated test may run with many seeds.
        let mut code =
            parse(if *is_simulated { "let body = || async" } else { "let body = async" });
        code.extend([TokenTree::Group(body)]);
        code.extend(parse(";"));
        code.extend(if *is_simulated {
            parse(&format!("{path}::simulation::run_test({seed}, body)"))
        } else {
            let workers = workers.as_ref().map(|count| format!(".workers({count})"));
            parse(&format!(
                "{path}::Runtime::builder().flavor({path}::Flavor::{flavor}){}.build()\
                 .expect(\"a runtime can be built\").block_on(body)",
                workers.unwrap_or_default()
            ))
        });
        Group::new(Delimiter::Brace, code)
    }
}
