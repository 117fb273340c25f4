//! The reports of a running instance, over a Unix socket, for every process that may open it.
//!
//! The client sends a line and gets a line of JSON, as often as it wants: `report` gets an [`InstanceReport`](report::InstanceReport);
//! `move FLOW SIDE` moves a flow and gets `{"moved":…}`; `takeover` is in `takeover.rs`; any other line, and any failure, gets `{"error":…}`.

mod client;
mod elsewhere;
mod plot;
mod rendezvous;
mod report;
mod server;
mod table;

pub(crate) use self::{
    client::{ClientError, report, request, stats},
    rendezvous::{RendezvousError, SocketGuard, bind, bind_beside, sweep},
    report::{
        CertificateReport, DRAINING, FORMAT_VERSION, FlowReport, HopReport, InstanceReport,
        RUNNING, ReloadReport, RoutesReport, TargetReport,
    },
    server::{Answers, serve},
};
