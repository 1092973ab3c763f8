//! What can be said, and that it is said in messages that the kernel can tell apart.

use super::*;

fn change(steps: Vec<Step>) -> Transaction {
    Transaction { family: Family::Ip, table: "t".into(), steps }
}

fn rule(text: &str) -> Option<Batch> {
    encode(&change(vec![Step::AddRule { chain: "c".into(), rule: text.into() }]))
}

#[test]
fn rules_of_services_can_be_said_and_others_are_left_to_nft() {
    for text in [
        "ip daddr 10.96.0.1 ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x4000",
        "ip saddr 10.128.0.0/9 return",
        "iifname \"veth*\" goto service-x",
        "iifname != \"cni0\" meta mark set meta mark | 0x4000",
        "meta l4proto sctp dnat ip to 10.244.0.2:8080",
        "meta l4proto udp dnat ip addr . port to udp dport . numgen random mod 2 map @m",
        "ip saddr 10.244.0.0/16 meta l4proto tcp dnat ip addr . port to tcp dport . numgen random mod 2 map @m",
        "fib saddr type local meta l4proto tcp dnat ip addr . port to ip daddr . tcp dport . numgen random mod 1 map @m",
        "meta l4proto tcp dnat ip addr . port to ip daddr . tcp dport . numgen random mod 3 map @m",
        "ip saddr . numgen inc mod 1 offset 7 @affinity-x goto endpoint-x",
        "numgen random mod 3 0 goto endpoint-x",
        "update @affinity-x { ip saddr . numgen inc mod 1 offset 7 timeout 10800s }",
        "fib saddr type local goto service-x",
        "drop",
        // Of NetworkPolicies.
        "ip saddr @pods-x tcp dport 80 accept",
        "ip daddr @nets-x accept",
        "udp dport 8000-8100 accept",
        "ip saddr @pods-x sctp dport { 80, 443-65535 } accept",
        "tcp dport { 80, 443 } accept",
        "meta l4proto tcp ip daddr . th dport @port-x accept",
        "jump ingress/shop/allow",
    ] {
        assert!(rule(text).is_some(), "{text}");
    }
    for text in [
        "ct state new jump x",
        "ip saddr != { 10.0.0.0/8 } drop",
        "ip6 saddr fd00::1 drop",
        "ip saddr 0.0.0.0/0 drop",
        "meta l4proto icmp drop",
        "meta l4proto tcp dnat ip to [fd00::1]:80",
        "meta l4proto tcp dnat ip to 10.0.0.1",
        "meta l4proto udp dnat ip addr . port to numgen random mod 2 map { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 }",
        "update @x { ip saddr timeout 10s }",
        "update @x { ip saddr . numgen inc mod 1 offset 7 timeout many }",
        "ip saddr . numgen inc mod 2 offset 7 @x drop",
        "ip daddr . numgen inc mod 1 offset 7 @x drop",
        "drop it",
        "counter",
        "tcp sport 80 accept",
        "tcp dport http accept",
        "tcp dport { 80, http } accept",
        "tcp dport { 80 } udp dport { 80 } accept",
        "ip saddr . th dport @port-x accept",
        "ip6 daddr . th dport @port-x accept",
    ] {
        assert_eq!(rule(text), None, "{text}");
    }
}

#[test]
fn elements_are_of_the_kind_the_set_says() {
    let add = |declaration: &str, key: &str, value: &str| {
        let elements = vec![(key.to_owned(), value.to_owned())];
        encode(&change(vec![Step::AddElements { set: "s".into(), declaration: declaration.into(), elements }]))
    };
    let ports = "type ipv4_addr . inet_proto . inet_service : verdict";
    assert!(add(ports, "10.96.0.1 . tcp . 80", "goto x").is_some());
    for (key, value) in [
        ("10.96.0.1 . tcp", "goto x"),
        ("10.96.0.1 . tcp . 65536", "goto x"),
        ("fd00::1 . tcp . 80", "goto x"),
        ("10.96.0.1 . icmp . 80", "goto x"),
        ("10.96.0.1 . tcp . 80", "queue"),
    ] {
        assert_eq!(add(ports, key, value), None, "{key} : {value}");
    }
    assert_eq!(add("type ipv4_addr; flags interval", "10.0.0.1", ""), None, "where others end is not known");
    assert_eq!(add("type ifname", "eth0", ""), None);
}

#[test]
fn a_batch_is_numbered_and_long_lists_are_cut() {
    let elements = (0..1200_u32).map(|i| (std::net::Ipv4Addr::from(i).to_string(), String::new())).collect();
    let declaration = "type ipv4_addr".to_owned();
    let steps = vec![
        Step::AddChain { name: "c".into(), hook: String::new() },
        Step::AddElements { set: "s".into(), declaration, elements },
    ];
    let batch = encode(&change(steps)).expect("said");
    assert_eq!(batch.steps, [(0, 0), (0, 1)]);
    let bodies: Vec<(u8, usize)> = messages(&batch.bytes)
        .filter_map(|message| match message {
            Message::Body { subsystem: SUBSYSTEM, number, attributes } => {
                assert_eq!(attribute(attributes, 1), Some(&b"t\0"[..]));
                let items = attribute(attributes, 3).map_or(0, |list| crate::netlink::attributes(list).count());
                Some((number, if number == NEW_ELEMENT { items } else { 0 }))
            }
            _ => None,
        })
        .collect();
    assert_eq!(bodies, [(NEW_CHAIN, 0), (NEW_ELEMENT, 1200)]);
    let refused = Refused { step: (0, 1), error: io::Error::from_raw_os_error(2) };
    let told = refused.told(&change(vec![Step::FlushChain("a".into()), Step::DeleteChain("b".into())]));
    assert!(told.ends_with("delete chain ip t b"), "{told}");
}

/// The length that an attribute says it has has 16 bits: what is longer is cut by the kernel without a word.
#[test]
fn no_message_is_longer_than_its_attributes_can_say() {
    let declaration = "type ipv4_addr . inet_proto . inet_service : verdict".to_owned();
    for letters in [1, 84, 150, 168, 240] {
        let element = |i: u32| {
            let key = format!("{} . tcp . 80", std::net::Ipv4Addr::from(i));
            (key, format!("goto {}", "c".repeat(letters)))
        };
        let elements: Vec<(String, String)> = (0..3000).map(element).collect();
        let count = elements.len();
        let step = Step::AddElements { set: "s".into(), declaration: declaration.clone(), elements };
        let batch = encode(&change(vec![step])).expect("said");
        let mut said = 0;
        for message in messages(&batch.bytes) {
            let Message::Body { subsystem: SUBSYSTEM, attributes, .. } = message else { continue };
            let list = attribute(attributes, 3).expect("a list");
            // Nothing is behind the list: it is as long as it says.
            let length: usize =
                crate::netlink::attributes(list).map(|(_, item)| item.len().next_multiple_of(4) + 4).sum();
            assert_eq!(length, list.len(), "{letters} letters");
            assert!(attributes.len() < 60_000, "{letters} letters: {}", attributes.len());
            said += crate::netlink::attributes(list).count();
        }
        assert_eq!(said, count, "{letters} letters");
    }
    // What does not fit by itself is left to `nft`.
    let rule = format!("ip saddr @{} goto x", "s".repeat(65_000));
    assert_eq!(encode(&change(vec![Step::AddRule { chain: "c".into(), rule }])), None);
}

#[test]
fn ranges_end_where_the_next_value_begins() {
    let flat = |keys: &[&str]| {
        let layout = Layout::parse("type inet_service; flags interval").expect("known");
        let items = layout.intervals(keys.iter().copied()).expect("ranges");
        let one = |item: &Vec<u8>| {
            let key = attribute(item, 1).and_then(|key| attribute(key, 1)).expect("a key");
            let (ends, open) = (attribute(item, 3).is_some(), attribute(item, 6).is_some());
            format!(
                "{}{}",
                u16::from_be_bytes([key[0], key[1]]),
                if ends {
                    " end"
                } else if open {
                    " open"
                } else {
                    ""
                }
            )
        };
        items.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(flat(&["443-445", "80"]), ["0 end", "80", "81 end", "443", "446 end"]);
    assert_eq!(flat(&["0-255", "511-65535"]), ["0", "256 end", "511 open"]);
    assert_eq!(flat(&["65535"]), ["0 end", "65535 open"]);
    let layout = Layout::parse("type ipv6_addr; flags interval").expect("known");
    assert_eq!(layout.intervals(["fd00::-10.0.0.1"].into_iter()), None);
    assert_eq!(Layout::parse("type ipv4_addr . inet_service; flags interval"), None);
}

#[test]
fn changes_of_two_tables_are_one_batch() {
    let of = |family| {
        let steps = vec![
            Step::AddSet { name: "n".into(), keyword: "set", declaration: "type inet_service; flags interval".into() },
            Step::AddElements {
                set: "n".into(),
                declaration: "type inet_service; flags interval".into(),
                elements: vec![("80-90".into(), String::new())],
            },
        ];
        Transaction { family, table: "t".into(), steps }
    };
    let changes = [of(Family::Ip), of(Family::Ip6)];
    let batch = encode_all(&changes).expect("said");
    assert_eq!(batch.steps, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    let refused = Refused { step: (1, 1), error: io::Error::from_raw_os_error(2) };
    assert!(refused.told_of(&changes).ends_with("add element ip6 t n { 80-90 }"), "{}", refused.told_of(&changes));
}
