//! Two connected streams, relayed in both directions until both have ended.
//!
//! ```text
//!                  up: bytes or messages              end: finish_writing at the other side (half-close)
//!   client ──────────────────────────────▶ upstream
//!          ◀──────────────────────────────
//!                 down: the same                      idle: nothing moved in either direction
//! ```
//!
//! A peer that resets its connection lets the other be reset too, so that nobody takes for complete what is not; and
//! so does a session that is dropped before it is over.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use vigie_detect::{Instant, Timers, Wait};

use super::{
    error::{Fault, Peer, RelayError},
    framed::{FramedPump, Framing},
    health::Health,
    means::Means,
    raw::RawPump,
    transport::Transport,
};
use crate::model::Mode;

/// One direction.
#[derive(Debug)]
enum Pump {
    Raw(RawPump),
    /// Beside raw ones, of which there may be many.
    Framed(Box<FramedPump>),
}

impl Pump {
    fn new(framing: Option<Framing>) -> Self {
        match framing {
            None => Self::Raw(RawPump::new()),
            Some(framing) => Self::Framed(Box::new(FramedPump::new(framing))),
        }
    }

    fn poll<A: Transport, B: Transport>(
        &mut self,
        cx: &mut Context<'_>,
        peers: (&A, &B),
        means: &Means,
        moved: &mut u64,
    ) -> Poll<Result<(), Fault>> {
        match self {
            Self::Raw(pump) => pump.poll(cx, peers, means, moved),
            Self::Framed(pump) => pump.poll(cx, peers, means, moved),
        }
    }

    fn holds_bytes(&self) -> bool {
        match self {
            Self::Raw(pump) => pump.holds_bytes(),
            Self::Framed(pump) => pump.holds_bytes(),
        }
    }

    fn torn_mode(&self) -> Option<Mode> {
        match self {
            Self::Raw(_) => None,
            Self::Framed(pump) => pump.torn_mode(),
        }
    }
}

/// A relayed connection.
#[derive(Debug)]
pub(super) struct Session<A: Transport, B: Transport> {
    client: A,
    upstream: B,
    up: Pump,
    down: Pump,
    up_is_over: bool,
    down_is_over: bool,
    /// Whether the peers may see how their connections are closed; else they are reset.
    is_told: bool,
    is_asked: bool,
    is_answered: bool,
    /// The upstream's.
    health: Option<Arc<Health>>,
    idle: Option<Idle>,
}

/// How often one looks whether what was written has arrived: with doubling pauses.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(64);

/// A receiver that takes nothing for so long gets its reset before what was written for it.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Idle {
    after: Duration,
    last_move: Instant,
    timer: Wait<Timers>,
}

impl<A: Transport, B: Transport> Session<A, B> {
    pub(super) fn new(
        (client, upstream): (A, B),
        framing: Option<Framing>,
        idle: Option<Duration>,
        means: &Means,
    ) -> Self {
        let idle = idle.map(|after| {
            let last_move = means.server.now();
            let timer = means.server.timers().wait_owned(last_move + after);
            Idle { after, last_move, timer }
        });
        let (up, down) = (Pump::new(framing), Pump::new(framing));
        Self {
            client,
            upstream,
            up,
            down,
            up_is_over: false,
            down_is_over: false,
            is_told: false,
            is_asked: false,
            is_answered: false,
            health: None,
            idle,
        }
    }

    /// Lets `health` know whether the upstream answers.
    pub(super) fn tells(&mut self, health: Arc<Health>) {
        self.health = Some(health);
    }

    /// Relays until both directions have ended, or something went wrong. Both connections are closed when the
    /// session is dropped, and reset if that is before.
    pub(super) async fn run(&mut self, means: &Means) -> Result<(), RelayError> {
        let ended = poll_fn(|cx| self.poll(cx, means)).await;
        match &ended {
            Ok(()) => self.is_told = true,
            Err(error) => {
                self.note_silence(error, means);
                if let Some(receiver) = self.receiver_of_messages(error) {
                    self.arrived(receiver, means).await;
                }
                self.tell(error, means);
            }
        }
        ended
    }

    fn note_silence(&self, error: &RelayError, means: &Means) {
        let is_over = matches!(
            error,
            RelayError::Idle { .. } | RelayError::Failed { peer: Peer::Upstream, .. }
        );
        if is_over && self.is_asked && !self.is_answered {
            means.counters.unanswered.add(1);
            if let Some(health) = &self.health {
                health.note_silent(error, means.server.now());
            }
        }
    }

    /// Returns for whom whole messages may still be on their way, which a reset would take back.
    fn receiver_of_messages(&self, error: &RelayError) -> Option<Peer> {
        match (&self.up, error) {
            (
                Pump::Framed(_),
                RelayError::Failed { peer, .. }
                | RelayError::Torn { peer, .. }
                | RelayError::Frame { peer, .. },
            ) => Some(peer.other()),
            _ => None,
        }
    }

    fn unsent_bytes(&self, peer: Peer) -> usize {
        match peer {
            Peer::Client => self.client.unsent_bytes(),
            Peer::Upstream => self.upstream.unsent_bytes(),
        }
    }

    /// Waits until `peer` has what was written for it, or has taken nothing for too long.
    async fn arrived(&mut self, peer: Peer, means: &Means) {
        let (mut left, mut last_move) = (self.unsent_bytes(peer), means.server.now());
        let mut pause = LOOK_FIRST;
        while left > 0 && means.server.now() - last_move < LOOK_PATIENCE {
            if means.server.timers().wait(means.server.now() + pause).await.is_err() {
                return;
            }
            pause = (pause * 2).min(LOOK_LAST);
            let now_left = self.unsent_bytes(peer);
            if now_left < left {
                (left, last_move) = (now_left, means.server.now());
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, means: &Means) -> Poll<Result<(), RelayError>> {
        let (mut up, mut down) = (0, 0);
        let mut ended = Ok(());
        if !self.up_is_over {
            let peers = (&self.client, &self.upstream);
            if let Poll::Ready(result) = self.up.poll(cx, peers, means, &mut up) {
                self.up_is_over = true;
                ended = result.map_err(|fault| fault.between(Peer::Client));
            }
        }
        if ended.is_ok() && !self.down_is_over {
            let peers = (&self.upstream, &self.client);
            if let Poll::Ready(result) = self.down.poll(cx, peers, means, &mut down) {
                self.down_is_over = true;
                ended = result.map_err(|fault| fault.between(Peer::Upstream));
            }
        }
        if up > 0 {
            means.counters.bytes_up.add(up);
            self.is_asked = true;
        }
        if down > 0 {
            means.counters.bytes_down.add(down);
            if !std::mem::replace(&mut self.is_answered, true)
                && let Some(health) = &self.health
            {
                health.note_answered(|| means.server.now());
            }
        }
        if ended.is_err() || (self.up_is_over && self.down_is_over) {
            return Poll::Ready(ended);
        }
        self.poll_idle(cx, up + down > 0, means)
    }

    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        has_moved: bool,
        means: &Means,
    ) -> Poll<Result<(), RelayError>> {
        let Some(idle) = &mut self.idle else { return Poll::Pending };
        if has_moved {
            // The timer is left where it is: what moves bytes shall not move timers too.
            idle.last_move = means.server.now();
        }
        loop {
            match Pin::new(&mut idle.timer).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let source = error.into();
                    return Poll::Ready(Err(RelayError::Failed { peer: Peer::Client, source }));
                }
            }
            let deadline = idle.last_move + idle.after;
            if deadline <= means.server.now() {
                return Poll::Ready(Err(RelayError::Idle { after: idle.after }));
            }
            idle.timer = means.server.timers().wait_owned(deadline);
        }
    }

    /// Lets the peers know how it ended, as far as an end of a stream would say something else.
    pub(super) fn tell(&mut self, error: &RelayError, means: &Means) {
        self.count_torn(error, means);
        let lacks = |pump: &Pump| pump.holds_bytes() || pump.torn_mode().is_some();
        let is_whole = matches!(error, RelayError::Idle { .. });
        // Idle peers that have got all that was sent for them see an end.
        if !is_whole || lacks(&self.up) || lacks(&self.down) {
            self.reset();
        }
        self.is_told = true;
    }

    fn reset(&self) {
        self.client.reset();
        self.upstream.reset();
    }

    /// Counts the messages that ended in the middle, in both directions.
    fn count_torn(&self, error: &RelayError, means: &Means) {
        for pump in [&self.up, &self.down] {
            match pump.torn_mode() {
                Some(Mode::CutThrough) => means.counters.messages_torn.add(1),
                Some(Mode::StoreAndForward) => means.counters.messages_dropped.add(1),
                None => {}
            }
        }
        tracing::debug!(%error, "a relayed connection ended before its time");
    }
}

/// A panic, or an executor that drops the task: the peers shall not take it for an end.
impl<A: Transport, B: Transport> Drop for Session<A, B> {
    fn drop(&mut self) {
        if !self.is_told {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests;
