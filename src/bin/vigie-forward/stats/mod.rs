//! What a running instance tells: over a Unix socket, to whoever may open it.
//!
//! The reader sends a line and gets a line of JSON, as often as it wants: `report` gets a
//! [`Report`](report::Report); `move FLOW SIDE` moves a flow and gets `{"moved":…}`; anything else, and whatever
//! goes wrong, gets `{"error":…}`.

mod client;
mod rendezvous;
mod report;
mod server;
mod table;

pub(crate) use self::{
    client::{request, stats},
    rendezvous::{RendezvousError, bind, sweep},
    report::{FORMAT_VERSION, FlowReport, Report, RoutesReport},
    server::serve,
};
