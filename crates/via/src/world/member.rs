//! A rank's side of a rendezvous, without I/O: what it has said, and what it was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    task::Waker,
};

use super::{
    Event, Membership, Rank, WorldError,
    hub::{GETS_MAX, KEYS_MAX},
    wire::{Reply, Request, VERSION},
};

/// What a rank knows.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) membership: Option<Membership>,
    /// Answers: what a rank has put, or that it is gone without that.
    values: BTreeMap<(Rank, String), Option<Vec<u8>>>,
    /// Whose value was asked for, `None` for everybody's.
    asked: BTreeSet<(Option<Rank>, String)>,
    put: BTreeSet<String>,
    /// The last barrier that this rank has come to, the last that it was let through, and the last of
    /// which a caller was told so: what is passed while nobody waits is the next caller's.
    entered: u32,
    passed: u32,
    told: u32,
    events: Vec<Event>,
    has_left: bool,
    end: Option<End>,
    /// Grows with everything that was heard, so that no waiter misses anything.
    pub(super) generation: u64,
    waiters: Vec<(u64, Waker)>,
    next_waiter: u64,
}

/// Why nothing more will be heard.
#[derive(Debug)]
enum End {
    Lost,
    Expelled(String),
    Broken(super::wire::WireError),
    Disorder(&'static str),
}

impl Member {
    pub(super) const fn hello() -> Request {
        Request::Hello { version: VERSION }
    }

    /// Publishes a value: what to say.
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<Request, WorldError> {
        self.check()?;
        if self.put.len() >= KEYS_MAX {
            return Err(WorldError::TooMany { what: "keys", limit: KEYS_MAX });
        }
        if !self.put.insert(key.to_owned()) {
            return Err(WorldError::AlreadyPut { key: key.to_owned() });
        }
        Ok(Request::Put { key: key.to_owned(), value: value.to_vec() })
    }

    /// Asks for a value, `None`: everybody's. What to say, if it was not asked for before.
    pub(super) fn ask(
        &mut self,
        rank: Option<Rank>,
        key: &str,
    ) -> Result<Option<Request>, WorldError> {
        if self.is_known(rank, key) {
            return Ok(None);
        }
        self.check()?;
        let question = (rank, key.to_owned());
        if self.asked.contains(&question) || self.asked.contains(&(None, key.to_owned())) {
            return Ok(None);
        }
        self.forget_answered();
        if self.asked.len() >= GETS_MAX {
            return Err(WorldError::TooMany { what: "open questions", limit: GETS_MAX });
        }
        self.asked.insert(question);
        Ok(Some(Request::Get { rank, key: key.to_owned() }))
    }

    fn forget_answered(&mut self) {
        let asked = mem::take(&mut self.asked);
        self.asked = asked.into_iter().filter(|(rank, key)| !self.is_known(*rank, key)).collect();
    }

    fn is_known(&self, rank: Option<Rank>, key: &str) -> bool {
        let is_known = |rank| self.values.contains_key(&(rank, key.to_owned()));
        match rank {
            Some(rank) => is_known(rank),
            None => (0..self.size()).map(Rank).all(is_known),
        }
    }

    /// Returns the answer for `rank`, if it is there.
    pub(super) fn answer(&self, rank: Rank, key: &str) -> Option<Option<Vec<u8>>> {
        self.values.get(&(rank, key.to_owned())).cloned()
    }

    /// Returns the answers of all ranks, if they are there.
    pub(super) fn answers(&self, key: &str) -> Option<Vec<Option<Vec<u8>>>> {
        (0..self.size()).map(|rank| self.answer(Rank(rank), key)).collect()
    }

    /// Comes to a barrier: which, and what to say unless this rank is in it already.
    pub(super) fn enter(&mut self) -> Result<(u32, Option<Request>), WorldError> {
        if self.entered != self.told {
            return Ok((self.entered, None));
        }
        self.check()?;
        let limit = WorldError::TooMany { what: "barriers", limit: usize::MAX };
        self.entered = self.entered.checked_add(1).ok_or(limit)?;
        Ok((self.entered, Some(Request::Enter { round: self.entered })))
    }

    /// Returns whether the barrier is passed, which the caller then tells.
    pub(super) fn pass(&mut self, round: u32) -> bool {
        let is_passed = self.passed >= round;
        if is_passed {
            self.told = self.told.max(round);
        }
        is_passed
    }

    pub(super) fn event(&self, index: usize) -> Option<Event> {
        self.events.get(index).copied()
    }

    /// Leaves: what to say, if that was not said before.
    pub(super) fn leave(&mut self) -> Result<Option<Request>, WorldError> {
        if self.has_left {
            return Ok(None);
        }
        self.check()?;
        self.has_left = true;
        Ok(Some(Request::Leave))
    }

    /// Says why nothing more can be said or heard.
    pub(super) fn check(&self) -> Result<(), WorldError> {
        if self.has_left {
            return Err(WorldError::Left);
        }
        match &self.end {
            None => Ok(()),
            Some(End::Lost) => Err(WorldError::LauncherLost),
            Some(End::Expelled(why)) => Err(WorldError::Expelled { why: why.clone() }),
            Some(End::Broken(error)) => Err((*error).into()),
            Some(End::Disorder(what)) => Err(WorldError::Disorder(what)),
        }
    }

    /// Takes a frame of the launcher, without its length.
    pub(super) fn receive(&mut self, frame: &[u8]) {
        match Reply::decode(frame) {
            Ok(reply) => {
                if let Err(what) = self.take(reply) {
                    self.close(End::Disorder(what));
                }
            }
            Err(error) => self.close(End::Broken(error)),
        }
        self.generation += 1;
    }

    /// Takes note of a stream without meaning.
    pub(super) fn receive_nonsense(&mut self, error: super::wire::WireError) {
        self.close(End::Broken(error));
    }

    /// Takes note that the launcher is gone.
    pub(super) fn lose(&mut self) {
        self.close(End::Lost);
    }

    /// Returns whether nothing more will be heard.
    pub(super) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    fn close(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.generation += 1;
    }

    fn take(&mut self, reply: Reply) -> Result<(), &'static str> {
        if let (None, Reply::Value { .. } | Reply::Absent { .. } | Reply::Event(_)) =
            (&self.membership, &reply)
        {
            return Err("it told something before its welcome");
        }
        match reply {
            Reply::Welcome(_) if self.membership.is_some() => return Err("a second welcome"),
            Reply::Welcome(membership) => self.membership = Some(membership),
            Reply::Value { rank, key, value } => self.learn(rank, key, Some(value))?,
            Reply::Absent { rank, key } => self.learn(rank, key, None)?,
            Reply::Passed { round } => {
                if round != self.entered || round == self.passed {
                    return Err("it opened a barrier out of order");
                }
                self.passed = round;
            }
            Reply::Event(event) => {
                // At most these: expelled or left, and ended.
                let count = self.events.iter().filter(|known| known.rank() == event.rank()).count();
                if event.rank().0 >= self.size() || count >= 2 {
                    return Err("it told of a rank that does not exist or was gone already");
                }
                self.events.push(event);
            }
            Reply::Expelled { why } => self.close(End::Expelled(why)),
        }
        Ok(())
    }

    fn learn(
        &mut self,
        rank: Rank,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<(), &'static str> {
        let is_asked =
            [Some(rank), None].into_iter().any(|whose| self.asked.contains(&(whose, key.clone())));
        if rank.0 >= self.size() || !(is_asked || self.values.contains_key(&(rank, key.clone()))) {
            return Err("it told a value that was not asked for");
        }
        self.values.entry((rank, key)).or_insert(value);
        Ok(())
    }

    fn size(&self) -> u32 {
        self.membership.as_ref().map_or(0, |membership| membership.size)
    }

    /// Leaves a waker for whatever is heard next, in place of the one of the same waiter.
    pub(super) fn wait(&mut self, waiter: &mut Option<u64>, waker: &Waker) {
        let next = &mut self.next_waiter;
        let id = *waiter.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        match self.waiters.iter_mut().find(|(other, _)| *other == id) {
            Some((_, old)) => old.clone_from(waker),
            None => self.waiters.push((id, waker.clone())),
        }
    }

    /// Forgets a waiter that does not wait any more.
    pub(super) fn forget(&mut self, waiter: u64) {
        self.waiters.retain(|(id, _)| *id != waiter);
    }

    /// Returns whom to wake, outside of any lock.
    pub(super) fn take_waiters(&mut self) -> Vec<(u64, Waker)> {
        mem::take(&mut self.waiters)
    }
}
