//! What the product logs, for a test to read. It needs `tracing`, and is taken in on its own.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// A subscriber that keeps the text of each event that is wanted: its level, and ` name=value` for each field. Clones have the
/// same texts.
#[derive(Clone)]
pub(crate) struct Log {
    is_wanted: fn(&Metadata<'_>) -> bool,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Log {
    pub(crate) fn new(is_wanted: fn(&Metadata<'_>) -> bool) -> Self {
        // While there is one dispatcher alone, `tracing` asks the thread that comes to an event first whether it is wanted, for
        // all threads: another test's thread, which has no subscriber, would say no.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(Log::keeping(|_| false)));
        LazyLock::force(&SECOND);
        Self::keeping(is_wanted)
    }

    fn keeping(is_wanted: fn(&Metadata<'_>) -> bool) -> Self {
        Self { is_wanted, texts: Arc::default() }
    }

    /// Returns the texts that contain `part`, the oldest first.
    pub(crate) fn with(&self, part: &str) -> Vec<String> {
        let texts = self.texts.lock().expect("no panic");
        texts.iter().filter(|text| text.contains(part)).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.is_wanted)(metadata)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.texts.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}
