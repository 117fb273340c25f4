//! Without the feature `tokio` there is no [`tokio_context`](super): types that have no value.

use std::{io, time::Duration};

#[derive(Clone, Debug)]
pub(crate) enum TokioContext {}

#[derive(Debug)]
pub(crate) enum EnteredTokio {}

#[derive(Debug)]
pub(crate) enum TokioRuntime {}

impl TokioContext {
    pub(crate) fn enter(&self) -> Option<EnteredTokio> {
        match *self {}
    }
}

impl TokioRuntime {
    pub(crate) fn start(_thread_name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn context(&self) -> TokioContext {
        match *self {}
    }

    pub(crate) fn shutdown(self, _timeout: Duration) {
        match self {}
    }

    pub(crate) fn leak(self) {
        match self {}
    }
}
