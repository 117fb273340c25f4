//! Go's runtime, by a program of ours that `go build` makes at first use where Go is installed.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::interface::Runner;
use crate::error::{BenchError, Failure};
use crate::host::limits;
use crate::host::{cache, is_installed, output_of, write_if_new};
use crate::mix::LoadServer;
use crate::schedulers::System;
use crate::server::ServerPlan;
use crate::workload::switches::{SwitchCounts, SwitchPlan};

const SOURCE: &str = include_str!("go.source.txt");

/// The time limit for building it, including the standard library.
const BUILDING: Duration = Duration::from_secs(300);

/// Serves requests that compute, and nothing else.
#[derive(Debug)]
pub(crate) struct Go;

impl Go {
    /// Tells whether there is a Go to build it with.
    pub(crate) fn is_installed() -> bool {
        is_installed("go")
    }

    /// Builds the program, unless that was done before.
    pub(crate) fn build() -> Result<(), BenchError> {
        let source = cache("go").join("main.go");
        if !write_if_new(&source, SOURCE)? && program().exists() {
            return Ok(());
        }
        let mut command = Command::new("go");
        // One file without a module, by the Go that is there.
        command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
        command.args(["build", "-o"]).arg(program()).arg(source);
        output_of(command, BUILDING).map(drop)
    }

    fn unsupported<T>() -> Result<T, Failure> {
        Err(Failure::unsupported(System::Go, "it serves the requests of `slowdown` alone"))
    }
}

fn program() -> PathBuf {
    cache("go").join("vigie-bench-go")
}

impl Runner for Go {
    fn serve(&self, _plan: &ServerPlan) -> Result<(), Failure> {
        Self::unsupported()
    }

    /// Becomes the Go program, which says all that this process would.
    fn load(&self, plan: &LoadServer) -> Result<(), Failure> {
        let Some((workers, descriptors)) = plan.as_service() else {
            return Self::unsupported();
        };
        limits::allow_connections(descriptors)?;
        let error = Command::new(program()).env("GOMAXPROCS", workers.to_string()).exec();
        Err(Failure::io("starting the program that Go built")(error))
    }

    fn switch(&self, _plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        Self::unsupported()
    }
}
