//! A rank's side of a rendezvous, without I/O: what it has said, and what it was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use super::{
    Event, Membership, Rank, WorldError,
    hub::{GETS_MAX, KEYS_MAX},
    rounds::Rounds,
    waiting::{Machine, Waiters},
    wire::{Reply, Request, VERSION, WireError},
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
    rounds: Rounds,
    events: Vec<Event>,
    has_left: bool,
    end: Option<End>,
    /// What is still to be given to whatever carries it. Bounded by what a rank may say before it hears
    /// an answer.
    pub(super) said: Vec<Request>,
    waiters: Waiters,
}

/// Why nothing more will be heard.
#[derive(Debug)]
enum End {
    Lost,
    Expelled(String),
    Broken(WireError),
    Disorder(&'static str),
    Missing { count: u32, ranks: Vec<Rank> },
}

impl Member {
    /// Asks who this rank is.
    pub(super) fn greet(&mut self) {
        self.said.push(Request::Hello { version: VERSION });
    }

    /// Publishes a value.
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), WorldError> {
        self.check()?;
        if self.put.len() >= KEYS_MAX {
            return Err(WorldError::TooMany { what: "keys", limit: KEYS_MAX });
        }
        if !self.put.insert(key.to_owned()) {
            return Err(WorldError::AlreadyPut { key: key.to_owned() });
        }
        self.said.push(Request::Put { key: key.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// Asks for a value, `None`: everybody's; unless it was asked for before.
    pub(super) fn ask(&mut self, rank: Option<Rank>, key: &str) -> Result<(), WorldError> {
        if self.is_known(rank, key) {
            return Ok(());
        }
        self.check()?;
        let question = (rank, key.to_owned());
        if self.asked.contains(&question) || self.asked.contains(&(None, key.to_owned())) {
            return Ok(());
        }
        self.forget_answered();
        if self.asked.len() >= GETS_MAX {
            return Err(WorldError::TooMany { what: "open questions", limit: GETS_MAX });
        }
        self.asked.insert(question);
        self.said.push(Request::Get { rank, key: key.to_owned() });
        Ok(())
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

    /// Comes to a barrier, unless this rank is in it already. Returns which.
    pub(super) fn enter(&mut self) -> Result<u32, WorldError> {
        if !self.rounds.is_inside() {
            self.check()?;
            let round = self.rounds.enter()?;
            self.said.push(Request::Enter { round });
        }
        Ok(self.rounds.entered())
    }

    /// Returns whether the barrier is passed, which the caller then tells.
    pub(super) fn pass(&mut self, round: u32) -> bool {
        self.rounds.tell(round)
    }

    pub(super) fn event(&self, index: usize) -> Option<Event> {
        self.events.get(index).copied()
    }

    /// Leaves, unless that was said before.
    pub(super) fn leave(&mut self) -> Result<(), WorldError> {
        if self.has_left {
            return Ok(());
        }
        self.check()?;
        self.has_left = true;
        self.said.push(Request::Leave);
        Ok(())
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
        self.waiters.moved();
    }

    /// Takes note of a stream without meaning.
    pub(super) fn receive_nonsense(&mut self, error: WireError) {
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
        self.waiters.moved();
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
                if !self.rounds.pass(round) {
                    return Err("it opened a barrier out of order");
                }
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
            Reply::Missing { count, ranks } => self.close(End::Missing { count, ranks }),
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
}

impl Machine for Member {
    fn check(&self) -> Result<(), WorldError> {
        if self.has_left {
            return Err(WorldError::Left);
        }
        match &self.end {
            None => Ok(()),
            Some(End::Lost) => Err(WorldError::LauncherLost),
            Some(End::Expelled(why)) => Err(WorldError::Expelled { why: why.clone() }),
            Some(End::Broken(error)) => Err((*error).into()),
            Some(End::Disorder(what)) => Err(WorldError::Disorder(what)),
            Some(End::Missing { count, ranks }) => {
                Err(WorldError::Missing { count: *count, ranks: ranks.clone() })
            }
        }
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}
