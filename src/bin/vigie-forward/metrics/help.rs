//! What the counters of flows count, for `# HELP` lines. The same name of another kind of flow has the same text.

/// By the names of `stats`; those of counters with the label `side` are without it.
const HELPS: [(&str, &str); 46] = [
    ("ICMP errors sent", "ICMP errors sent to senders of packets that were not forwarded."),
    ("ICMP errors suppressed", "ICMP errors not sent, since their interface had reached its rate."),
    ("accepted", "Connections accepted from clients."),
    ("active", "Connections, or sessions of datagrams, that are open now."),
    ("bytes_copied", "Bytes of streams that were copied through buffers."),
    ("bytes_down", "Bytes from targets to clients."),
    ("bytes_spliced", "Bytes of streams that the kernel moved through pipes."),
    ("bytes_up", "Bytes from clients to targets."),
    ("connects_failed", "Failed attempts to connect to a target, for any reason."),
    ("connects_timed_out", "Attempts to connect to a target that exceeded their time (`connect`)."),
    ("cut", "Connections that were cut at the deadline of a drain."),
    ("datagrams_down", "Datagrams from targets to clients."),
    ("datagrams_up", "Datagrams from clients to targets."),
    ("denied", "Connections or datagrams of clients that `allow` and `deny` refuse."),
    ("expired", "Sessions of datagrams that ended after their time without traffic (`idle`)."),
    ("finished", "Connections that both peers have ended."),
    ("left_to_host", "Packets that the program at the interface has left to this process."),
    ("left_to_kernel", "Packets left to the kernel, such as ARP and those to the host itself."),
    ("malformed", "Connections ended by an invalid PROXY protocol header or message length."),
    ("messages", "Messages forwarded, of relays with messages (`framed`)."),
    ("messages_cut_through", "Messages forwarded before they had arrived completely."),
    ("messages_dropped", "Messages that arrived incomplete and were not forwarded."),
    ("messages_torn", "Messages of which the receiver got only a part, and then a reset."),
    ("messages_unstored", "Messages that were cut through for lack of memory to store them."),
    ("opened", "Sessions of datagrams that were opened."),
    (
        "over_retry_budget",
        "Connections ended without a target, since `retries` allowed no other try.",
    ),
    ("over_source_max", "Connections or datagrams of sources beyond `per_source_max`."),
    ("overflowed", "Datagrams that the kernel dropped at the sockets, mostly for full queues."),
    ("pauses", "Times that accepting paused for lack of descriptors or memory."),
    ("pipes_missing", "Times that bytes were copied since no pipe was available."),
    ("received_packets", "Packets received, by this process or a program at the interface."),
    ("refused", "Connections or datagrams for which no target or no session could be had."),
    ("reset", "Connections that a peer reset, or that failed otherwise."),
    ("retries", "Attempts to connect to another target after a failed one."),
    ("sent_bytes", "Bytes of frames sent, by this process or a program at the interface."),
    ("sent_packets", "Packets sent, by this process or a program at the interface."),
    ("timed_out", "Connections closed after their time without traffic (`idle`)."),
    ("tls_passed_through", "Connections passed on by the name asked for, without ending TLS."),
    ("translations", "Translations that exist now."),
    ("translations: ended for others", "Translations that ended early to make room for others."),
    (
        "translations: percent full",
        "Percentage in use now of the translations or ports that there may be.",
    ),
    ("translations: ports in use", "Ports in use now, of the address and protocol with the most."),
    ("translations: refused", "Translations that could not begin, for lack of room."),
    ("unanswered", "Connections or sessions whose target was sent something and answered nothing."),
    ("unreachable", "Reports of a network that a datagram did not arrive."),
    (
        "untranslated",
        "Packets forwarded from inside to outside with their own source, as translations leave it out.",
    ),
];

/// Returns the text for a counter.
pub(super) fn of(name: &str) -> Option<&'static str> {
    HELPS.iter().find(|(known, _)| *known == name).map(|(_, help)| *help)
}
