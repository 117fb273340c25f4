//! The command line.

use std::{
    ffi::{OsStr, OsString},
    time::Duration,
};

use clap::{Parser, ValueEnum, value_parser};

/// The most ranks of one job.
pub(crate) const RANKS_MAX: u32 = 1024;

/// Starts the ranks of a program on this host, and ends them together.
#[derive(Debug, Parser)]
#[command(name = "vigie-run", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// How many ranks to start: 1 to 1024.
    #[arg(short = 'n', long = "ranks", value_name = "N",
          value_parser = value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    pub(crate) ranks: u32,

    /// Let the other ranks go on when one fails, and tell them over the rendezvous.
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// End the job after this time, with code 124.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,

    /// How long ranks that are told to end (SIGTERM) may take before they are killed (SIGKILL).
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    pub(crate) timeout_end: Duration,

    /// Begin each line of output with its rank: `[3] `. This is the default.
    #[arg(long, conflicts_with = "no_prefix")]
    tag_output: bool,

    /// Give the ranks the launcher's own output, as it is, instead of passing it on line by line.
    #[arg(long)]
    pub(crate) no_prefix: bool,

    /// Keep each rank on one processor (`core`), in turn over those that the launcher may use.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = BindTo::None)]
    pub(crate) bind_to: BindTo,

    /// Set an environment variable of the ranks; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// The program, found by PATH if it has no slash, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Cli {
    /// The program and its arguments.
    pub(crate) fn program_and_arguments(&self) -> (&OsStr, &[OsString]) {
        match self.command.split_first() {
            Some((program, arguments)) => (program, arguments),
            // clap has seen to it that there is one.
            None => (OsStr::new(""), &[]),
        }
    }
}

/// Where ranks may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BindTo {
    /// Wherever the launcher may.
    None,
    /// On one processor each.
    Core,
}

const AFTER_HELP: &str = "\
Environment of the ranks:
  VIGIE_RANK, VIGIE_SIZE   for scripts
  VIGIE_RENDEZVOUS         the number of the descriptor by which vigie's `World` joins

Input and output: rank 0 has the launcher's standard input, the others have none. Each line of
output is passed on whole, after its rank; a last line without its end gets one; a line of more
than 64 KiB is cut. With --no-prefix nothing is touched.

Ends: when a rank fails, the others get SIGTERM, and SIGKILL after --timeout-end; with --keep-going
they go on. Each rank leads a process group of its own, which gets every signal and is killed when
the rank has ended. Ranks do not outlive the launcher, even if that is killed.

Signals: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on to
the ranks. A second SIGINT or SIGTERM kills them.

Exit code:
  0           all ranks ended with 0
  N           what the first rank that failed ended with; 128 + S if signal S killed it
  124         the job took longer than --timeout
  126, 127    the program cannot be run; there is no such program
  2           the command line is wrong, or the job is more than this host allows
  1           output could not be written";

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= 1e9 => Ok(duration),
        _ => Err("must be 0 to 1000000000 seconds".to_owned()),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    /// Goal: the definition of the command line is sound. Method: clap's own check.
    #[test]
    fn definition() {
        Cli::command().debug_assert();
    }

    /// Goal: what follows the program is the program's, whatever it looks like. Method: a command with
    /// the launcher's own flags behind the program.
    #[test]
    fn the_programs_arguments() {
        let cli = Cli::try_parse_from(["vigie-run", "-n", "2", "prog", "-n", "--help", "--", "x"]);
        let cli = cli.unwrap();
        let (program, arguments) = cli.program_and_arguments();
        assert_eq!((cli.ranks, program.to_str()), (2, Some("prog")));
        assert_eq!(arguments, ["-n", "--help", "--", "x"]);
    }

    /// Goal: bad input is refused. Method: each kind of it.
    #[test]
    fn bad_input() {
        for (arguments, kind) in [
            (&["-n", "0", "x"][..], ErrorKind::ValueValidation),
            (&["-n", "1025", "x"], ErrorKind::ValueValidation),
            (&["-n", "-1", "x"], ErrorKind::UnknownArgument),
            (&["-n", "two", "x"], ErrorKind::ValueValidation),
            (&["-n", "1"], ErrorKind::MissingRequiredArgument),
            (&["x"], ErrorKind::MissingRequiredArgument),
            (&["-n", "1", "--env", "A", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "=A", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--timeout", "-1", "x"], ErrorKind::UnknownArgument),
            (&["-n", "1", "--timeout=nan", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--timeout=1e99", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--bind-to", "moon", "x"], ErrorKind::InvalidValue),
            (&["-n", "1", "--tag-output", "--no-prefix", "x"], ErrorKind::ArgumentConflict),
        ] {
            let error = Cli::try_parse_from(["vigie-run"].iter().chain(arguments)).unwrap_err();
            assert_eq!(error.kind(), kind, "{arguments:?}: {error}");
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
        }
    }
}
