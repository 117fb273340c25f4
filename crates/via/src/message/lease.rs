//! Contexts that are given back.

use std::sync::Arc;

use super::endpoint_engine::EndpointInner;
use crate::vi::Provider;

/// A context that comes back when this is dropped.
pub(super) struct ContextLease<P: Provider> {
    inner: Arc<EndpointInner<P>>,
    pub(super) context: u16,
}

impl<P: Provider> ContextLease<P> {
    /// Takes the highest context up to `most` of which nothing is left in the engine.
    pub(super) fn take(inner: &Arc<EndpointInner<P>>, mut most: u16) -> Option<Self> {
        loop {
            let context = inner.contexts.take(most)?;
            let lease = Self { inner: Arc::clone(inner), context };
            let is_idle = inner.with(|engine| {
                // Messages that came after the last communicator of this context was dropped.
                engine.forget_context(context);
                engine.is_context_idle(context)
            });
            if is_idle {
                return Some(lease);
            }
            most = context - 1;
        }
    }
}

impl<P: Provider> Drop for ContextLease<P> {
    fn drop(&mut self) {
        self.inner.drop_with(|engine| engine.forget_context(self.context));
        self.inner.contexts.release(self.context);
    }
}
