//! Two connected streams, relayed in both directions until both have ended.
//!
//! ```text
//!                  up: bytes or messages              end: poll_finish at the other side (half-close)
//!   client ──────────────────────────────▶ upstream
//!          ◀──────────────────────────────
//!                 down: the same                      idle: nothing moved in either direction
//! ```
//!
//! If a peer resets its connection, the other is reset too, so that it never takes a part for the whole; the same
//! happens if a session is dropped before its end.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_detect::{Instant, Timers, Wait};

use super::{
    error::{EndedStreams, Peer, PumpError, RelayError},
    framed::{FramedPump, Framing},
    health::UpstreamHealth,
    raw::RawPump,
    resources::RelayResources,
    stream::{PumpContext, RelayStream},
};
use crate::model::SwitchingMode;

/// One direction.
#[derive(Debug)]
enum Pump {
    Raw(RawPump),
    /// Boxed, since there may be many raw ones beside it.
    Framed(Box<FramedPump>),
}

impl Pump {
    fn new(framing: Option<Framing>) -> Self {
        match framing {
            None => Self::Raw(RawPump::new()),
            Some(framing) => Self::Framed(Box::new(FramedPump::new(framing))),
        }
    }

    fn poll<A: RelayStream, B: RelayStream>(
        &mut self,
        cx: &mut Context<'_>,
        context: PumpContext<'_, A, B>,
    ) -> Poll<Result<(), PumpError>> {
        match self {
            Self::Raw(pump) => pump.poll(cx, context),
            Self::Framed(pump) => pump.poll(cx, context),
        }
    }

    fn holds_bytes(&self) -> bool {
        match self {
            Self::Raw(pump) => pump.holds_bytes(),
            Self::Framed(pump) => pump.holds_bytes(),
        }
    }

    fn torn_mode(&self) -> Option<SwitchingMode> {
        match self {
            Self::Raw(_) => None,
            Self::Framed(pump) => pump.torn_mode(),
        }
    }
}

/// A relayed connection.
#[derive(Debug)]
pub(super) struct Session<A: RelayStream, B: RelayStream> {
    client: A,
    upstream: B,
    up: Pump,
    down: Pump,
    up_is_over: bool,
    down_is_over: bool,
    ended: EndedStreams,
    /// True if the connections may be closed normally; otherwise they are reset.
    is_closed: bool,
    /// Bytes that have moved in each direction.
    bytes_up: u64,
    bytes_down: u64,
    /// The health of the upstream.
    health: Option<Arc<UpstreamHealth>>,
    idle: Option<IdleTimer>,
}

/// The initial interval for checking whether written bytes have arrived; it doubles.
const POLL_DELAY_MIN: Duration = Duration::from_millis(1);
const POLL_DELAY_MAX: Duration = Duration::from_millis(64);

/// If a receiver accepts nothing for this long, it is reset even though bytes for it are lost.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct IdleTimer {
    after: Duration,
    last_move: Instant,
    timer: Wait<Timers>,
}

impl<A: RelayStream, B: RelayStream> Session<A, B> {
    pub(super) fn new(
        (client, upstream): (A, B),
        framing: Option<Framing>,
        idle: Option<Duration>,
        resources: &RelayResources,
    ) -> Self {
        let idle = idle.map(|after| {
            let last_move = resources.server.now();
            let timer = resources.server.timers().wait_owned(last_move + after);
            IdleTimer { after, last_move, timer }
        });
        let (up, down) = (Pump::new(framing), Pump::new(framing));
        Self {
            client,
            upstream,
            up,
            down,
            up_is_over: false,
            down_is_over: false,
            ended: EndedStreams::default(),
            is_closed: false,
            bytes_up: 0,
            bytes_down: 0,
            health: None,
            idle,
        }
    }

    /// Reports to `health` whether the upstream answers.
    pub(super) fn report_to(&mut self, health: Arc<UpstreamHealth>) {
        self.health = Some(health);
    }

    /// Returns the bytes that have moved: to the upstream, and to the client.
    pub(super) const fn moved_bytes(&self) -> (u64, u64) {
        (self.bytes_up, self.bytes_down)
    }

    /// Relays until both directions have ended, or an error occurs. Dropping the session closes both connections, or
    /// resets them if it has not ended.
    pub(super) async fn run(&mut self, resources: &RelayResources) -> Result<(), RelayError> {
        let ended = poll_fn(|cx| self.poll(cx, resources)).await;
        match &ended {
            Ok(()) => self.is_closed = true,
            Err(error) => {
                self.note_silence(error, resources);
                if let Some(receiver) = self.receiver_of_messages(error) {
                    self.wait_delivered(receiver, resources).await;
                }
                self.close(error, resources);
            }
        }
        ended
    }

    fn note_silence(&self, error: &RelayError, resources: &RelayResources) {
        let is_over = matches!(
            error,
            RelayError::Idle { .. }
                | RelayError::Failed { peer: Peer::Upstream, .. }
                | RelayError::Unclean { peer: Peer::Upstream }
        );
        if is_over && self.bytes_up > 0 && self.bytes_down == 0 {
            resources.counters.unanswered.add(1);
            if let Some(health) = &self.health {
                health.note_silent(error, resources.server.now());
            }
        }
    }

    /// Returns the peer to which complete messages may still be in flight, which a reset would discard.
    fn receiver_of_messages(&self, error: &RelayError) -> Option<Peer> {
        match (&self.up, error) {
            (
                Pump::Framed(_),
                RelayError::Failed { peer, .. }
                | RelayError::Closed { peer, .. }
                | RelayError::Unclean { peer }
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

    /// Waits until everything written has reached `peer`, or it has accepted nothing for too long.
    async fn wait_delivered(&mut self, peer: Peer, resources: &RelayResources) {
        let (mut left, mut last_move) = (self.unsent_bytes(peer), resources.server.now());
        let mut pause = POLL_DELAY_MIN;
        while left > 0 && resources.server.now() - last_move < DELIVERY_TIMEOUT {
            if resources.server.timers().wait(resources.server.now() + pause).await.is_err() {
                return;
            }
            pause = (pause * 2).min(POLL_DELAY_MAX);
            let now_left = self.unsent_bytes(peer);
            if now_left < left {
                (left, last_move) = (now_left, resources.server.now());
            }
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        resources: &RelayResources,
    ) -> Poll<Result<(), RelayError>> {
        let (mut up, mut down) = (0, 0);
        let mut ended = Ok(());
        if !self.up_is_over {
            let (from, to, moved) = (&self.client, &self.upstream, &mut up);
            let polled = self.up.poll(cx, PumpContext { from, to, resources, moved });
            if let Poll::Ready(result) = polled {
                self.up_is_over = true;
                self.ended.up = result.is_ok().then_some(self.bytes_down);
                ended = result.map_err(|fault| fault.between(Peer::Client));
            }
        }

        if ended.is_ok() && !self.down_is_over {
            let (from, to, moved) = (&self.upstream, &self.client, &mut down);
            let polled = self.down.poll(cx, PumpContext { from, to, resources, moved });
            if let Poll::Ready(result) = polled {
                self.down_is_over = true;
                self.ended.down = result.is_ok().then_some(self.bytes_up + up);
                ended = result.map_err(|fault| fault.between(Peer::Upstream));
            }
        }

        if up > 0 {
            resources.counters.bytes_up.add(up);
            self.bytes_up += up;
        }

        if down > 0 {
            resources.counters.bytes_down.add(down);
            let is_first = self.bytes_down == 0;
            self.bytes_down += down;
            if is_first && let Some(health) = &self.health {
                health.note_answered(|| resources.server.now());
            }
        }

        if let Err(error) = ended {
            // The peer may have been cut off by others, so the other one sees no end of its stream.
            let closed = error.or_close(self.ended, self.moved_bytes());
            return Poll::Ready(closed.map(|peer| match peer {
                Peer::Client => self.upstream.reset(),
                Peer::Upstream => self.client.reset(),
            }));
        }
        if self.up_is_over && self.down_is_over {
            return Poll::Ready(Ok(()));
        }

        self.poll_idle(cx, up + down > 0, resources)
    }

    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        has_moved: bool,
        resources: &RelayResources,
    ) -> Poll<Result<(), RelayError>> {
        let Some(idle) = &mut self.idle else { return Poll::Pending };
        if has_moved {
            // The timer is left alone: moving bytes must not move timers too.
            idle.last_move = resources.server.now();
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
            if deadline <= resources.server.now() {
                return Poll::Ready(Err(RelayError::Idle { after: idle.after }));
            }
            idle.timer = resources.server.timers().wait_owned(deadline);
        }
    }

    /// Lets the peers see how it ended, if an end of stream would be misleading.
    pub(super) fn close(&mut self, error: &RelayError, resources: &RelayResources) {
        self.count_torn(error, resources);
        let lacks = |pump: &Pump| pump.holds_bytes() || pump.torn_mode().is_some();
        let is_whole = matches!(error, RelayError::Idle { .. });
        // Idle peers that have got everything sent to them see an end of stream.
        if !is_whole || lacks(&self.up) || lacks(&self.down) {
            self.reset();
        } else {
            // Nothing is on its way, so there is room in the kernel's queues for what ends TLS.
            let cx = Context::from_waker(Waker::noop());
            let _ = (self.client.poll_finish(&cx), self.upstream.poll_finish(&cx));
        }
        self.is_closed = true;
    }

    fn reset(&self) {
        self.client.reset();
        self.upstream.reset();
    }

    /// Counts the messages that were cut short, in both directions.
    fn count_torn(&self, error: &RelayError, resources: &RelayResources) {
        for pump in [&self.up, &self.down] {
            match pump.torn_mode() {
                Some(SwitchingMode::CutThrough) => resources.counters.messages_torn.add(1),
                Some(SwitchingMode::StoreAndForward) => resources.counters.messages_dropped.add(1),
                None => {}
            }
        }
        tracing::debug!(%error, "a relayed connection ended before its time");
    }
}

/// After a panic, or if an executor drops the task, the peers must not see a normal end.
impl<A: RelayStream, B: RelayStream> Drop for Session<A, B> {
    fn drop(&mut self) {
        if !self.is_closed {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests;
