//! Resources besides descriptors that the kernel refuses: handles and errors say so, and name the cause.

use std::{error::Error, io, sync::Arc};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vigie_runtime::{BuildError, Flavor};

use super::alive::assert_alive;
use crate::{flavors::runtime, kit::child::in_child};

/// Goal: a closure for which there is no thread at all is refused, not just cancelled, and says why; it is
/// dropped, and the next one runs. Method: a process whose address space has no room for another stack,
/// for a while, and in which no thread has ended, whose stack could be used again. The pool is the same for
/// all flavors; this one has no threads that would begin meanwhile.
#[test]
fn a_blocking_thread_that_the_kernel_refuses() {
    in_child("refusals::a_blocking_thread_that_the_kernel_refuses", || {
        let runtime = runtime(Flavor::UserLevel);
        let limit = getrlimit(Resource::As);
        let none = Rlimit { current: Some(1 << 20), maximum: limit.maximum };
        let witness = Arc::new(());
        let taken = Arc::clone(&witness);
        setrlimit(Resource::As, none).expect("the limit may be lowered");
        let refused = runtime.handle().spawn_blocking(move || drop(taken));
        setrlimit(Resource::As, limit).expect("the limit may be raised again");
        assert_eq!(Arc::strong_count(&witness), 1, "the closure was dropped");
        let error = runtime.block_on(refused).expect_err("there was no thread");
        assert!(error.is_refused() && error.is_cancelled(), "{error}");
        assert!(error.to_string().starts_with("there is no thread"), "{error}");
        let closure = runtime.handle().spawn_blocking(|| 2);
        assert_eq!(runtime.block_on(closure).expect("there is one now"), 2);
        assert_alive(&runtime);
    });
}

/// Goal: the errors of building blame a limit for what that limit has done, and nothing else. Method: the
/// errors of calls that a limit and that a seccomp filter have refused.
#[test]
fn errors_of_building_name_the_cause() {
    const PERMISSION: i32 = 1;
    const TRY_AGAIN: i32 = 11;
    const NO_MEMORY: i32 = 12;
    const TOO_MANY: i32 = 24;
    let error = io::Error::from_raw_os_error;
    for (built, named) in [
        (BuildError::Server(error(TOO_MANY)), Some("ulimit -n")),
        (BuildError::Server(error(PERMISSION)), None),
        (BuildError::Server(error(NO_MEMORY)), None),
        (BuildError::Thread(error(TRY_AGAIN)), Some("ulimit -u")),
        (BuildError::Thread(error(PERMISSION)), None),
    ] {
        let text = built.to_string();
        match named {
            Some(limit) => assert!(text.contains(limit), "{text}"),
            None => assert!(!text.contains("ulimit"), "{text}"),
        }
        assert_eq!(text.contains("seccomp"), built.source().is_some_and(is_permission), "{text}");
    }
}

fn is_permission(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}
