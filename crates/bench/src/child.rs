//! This program, started again as another process of a measurement.

use serde_json::Value;

use crate::background::{self, BackgroundPlan};
use crate::barrier::network::NetPlan;
use crate::barrier::processes::MemberPlan;
use crate::barrier::{self, GroupPlan, network, processes};
use crate::client::{self, Crowd, PingPong, Requests};
use crate::error::Failure;
use crate::files::{self, FileLoadPlan};
use crate::forward::live::{self, ForwarderPlan, LoadPlan};
use crate::forward::relay::{self, LoadRole, RelayRole};
use crate::forward::via::node::{self, NodePlan};
use crate::http::{HttpClient, HttpServer};
use crate::messages::ranks::RankPlan;
use crate::messages::role as rank;
use crate::mix::{ClosedClients, LoadServer, PacedClient};
use crate::process::{Role as _, play_if_child, read};
use crate::runner;
use crate::server::ServerPlan;
use crate::starts;
use crate::switches::{self, SwitchPlan};
use crate::timers::{self, TimerPlan};

/// Becomes a child of a measurement if this process was started as one; returns at once otherwise.
///
/// Every program that measures through this crate calls this first in `main`: the load generator is
/// the same program, started again.
///
/// # Panics
/// Panics if the environment variable `VIGIE_BENCH_CHILD` holds something that this crate did not write.
///
/// # Examples
/// ```
/// // The first line of `main`:
/// vigie_bench::child::maybe_run_child();
/// // From here on: the program itself.
/// ```
pub fn maybe_run_child() {
    starts::play_if_rank();
    play_if_child(play);
}

/// Plays the role with this key, whatever the plan says.
fn play(role: &str, plan: Value) -> Result<(), Failure> {
    match role {
        PingPong::KEY => client::generate(&read(plan)),
        ServerPlan::KEY => runner::serve(&read(plan)),
        SwitchPlan::KEY => switches::count_here(&read(plan)),
        TimerPlan::KEY => timers::run_here(&read(plan)),
        FileLoadPlan::KEY => files::run_here(&read(plan)),
        Crowd::KEY => client::send_as_crowd(&read(plan)),
        Requests::KEY => client::request(&read(plan)),
        BackgroundPlan::KEY => background::compute(read(plan)),
        RankPlan::KEY => rank::play(&read(plan)),
        GroupPlan::KEY => barrier::play(&read(plan)),
        MemberPlan::KEY => processes::play(&read(plan)),
        NetPlan::KEY => network::play(&read(plan)),
        NodePlan::KEY => node::play(&read(plan)),
        ForwarderPlan::KEY => live::forward(&read(plan)),
        LoadPlan::KEY => live::load(&read(plan)),
        RelayRole::KEY => relay::serve(&read(plan)),
        LoadRole::KEY => relay::load(&read(plan)),
        LoadServer::KEY => runner::load(&read(plan)),
        PacedClient::KEY => read::<PacedClient>(plan).run(),
        ClosedClients::KEY => read::<ClosedClients>(plan).run(),
        HttpServer::KEY => read::<HttpServer>(plan).serve(),
        HttpClient::KEY => read::<HttpClient>(plan).run(),
        unknown => panic!("VIGIE_BENCH_CHILD names no role of vigie-bench: {unknown:?}"),
    }
}
