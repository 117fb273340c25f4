//! The suite for engines: an engine on its host is a detector, and is tried as one.

use super::{
    Harness, Hosts, Options, Profile, Recognised, Report, SetupError, Trigger, Unclaimed,
    Violation, World, check_with,
};
use crate::{
    clock::Instant,
    engine::{Engine, EngineEvent, EngineHost, EngineWatch},
    server::Handle,
};

/// What the suite needs of an [`Engine`]: its host, and a way to make its events happen. [`Harness`] says how the suite
/// numbers requests, which are wants here, and events.
pub trait EngineHarness: Sized + 'static {
    /// The engine.
    type Engine: Engine;

    /// The hosts on which it works. Default both; an engine with descriptors needs a real one.
    const HOSTS: Hosts = Hosts::Both;

    /// Returns the host of the engine, at the server of the [`World`].
    fn host(&self) -> &EngineHost<Self::Engine>;

    /// Makes want number `index`.
    fn want(&mut self, index: usize) -> <Self::Engine as Engine>::Want;

    /// Makes event number `index` happen when it is called: it has happened once the call returns.
    fn trigger(&mut self, index: usize) -> Trigger;

    /// Tells which event it is that want number `want` got.
    fn recognise(&mut self, want: usize, found: <Self::Engine as Engine>::Found) -> Recognised;

    /// Tells what the suite may expect. Default: any event is for any want, and the engine takes back what a waiter has left.
    fn profile(&self) -> Profile {
        Profile::shared(Unclaimed::Returned)
    }

    /// Returns the time at which event `index` happens by itself: see [`Harness::happens_at`]. Default none.
    fn happens_at(&self, index: usize) -> Option<Instant> {
        let _ = index;
        None
    }

    /// Makes the want for [`EngineHost::events`]; `None`, the default, if nobody uses them.
    fn want_of_events(&mut self) -> Option<<Self::Engine as Engine>::Want> {
        None
    }
}

/// Tries the contract of [`Engine`] on the engine that `factory` makes, on its host, with [`Options::from_env`].
///
/// # Errors
/// The first [`Violation`] that is seen. It names the rules of [`Detector`](crate::Detector), which an engine on its host is.
pub fn check_engine<H: EngineHarness>(
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    check_engine_with(&Options::from_env(), factory)
}

/// Like [`check_engine`], with options.
///
/// # Errors
/// As [`check_engine`].
pub fn check_engine_with<H: EngineHarness>(
    options: &Options,
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    check_with(options, &mut |world: &World| factory(world).map(OnHost))
}

/// An engine's harness as that of the detector on its host.
struct OnHost<H>(H);

impl<H: EngineHarness> Harness for OnHost<H> {
    type Detector = EngineWatch<H::Engine>;

    const HOSTS: Hosts = H::HOSTS;

    fn handle(&self) -> &Handle<Self::Detector> {
        self.0.host().handle()
    }

    fn request(&mut self, index: usize) -> <H::Engine as Engine>::Want {
        self.0.want(index)
    }

    fn trigger(&mut self, index: usize) -> Trigger {
        self.0.trigger(index)
    }

    fn recognise(&mut self, request: usize, event: EngineEvent<H::Engine>) -> Recognised {
        self.0.recognise(request, event.into_found())
    }

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn happens_at(&self, index: usize) -> Option<Instant> {
        self.0.happens_at(index)
    }

    fn stream_request(&mut self) -> Option<<H::Engine as Engine>::Want> {
        self.0.want_of_events()
    }
}
