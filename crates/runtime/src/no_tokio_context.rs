//! Without the feature `tokio` there is no [`tokio_context`](super): types that have no value.

use std::{convert::Infallible, io, time::Duration};

#[derive(Clone, Debug)]
pub(crate) struct TokioContext(Infallible);

#[derive(Debug)]
pub(crate) struct EnteredTokio(Infallible);

#[derive(Debug)]
pub(crate) struct TokioRuntime(Infallible);

impl TokioContext {
    pub(crate) fn enter(&self) -> Option<EnteredTokio> {
        match self.0 {}
    }
}

impl TokioRuntime {
    pub(crate) fn start(_thread_name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn context(&self) -> TokioContext {
        match self.0 {}
    }

    pub(crate) fn shutdown(self, _timeout: Duration) {
        match self.0 {}
    }

    pub(crate) fn leak(self) {
        match self.0 {}
    }
}
