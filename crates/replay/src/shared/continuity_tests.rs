use proptest::prelude::*;

use super::*;
use crate::shared::Slots;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn settings() -> SharedConfig {
    SharedConfig::default()
}

fn epoch_of(run_id: &str, replication_id: &str) -> Epoch {
    Epoch {
        run_id: run_id.into(),
        replication_id: replication_id.into(),
        slots: Slots::ALL,
        settings: settings(),
    }
}

/// A heartbeat of a healthy store, at second `at` by both clocks. Its epoch is older than the
/// recording window.
fn healthy(at: u64) -> Heartbeat {
    Heartbeat {
        run_id: "p".into(),
        replication_id: "r".into(),
        role: Role::Master,
        replication_offset: at,
        maxmemory: 0,
        maxmemory_policy: "noeviction".into(),
        evicted_keys: 0,
        slots: Slots::ALL,
        epoch: Some(epoch_of("p", "r")),
        epoch_age: s(100),
        store_time: s(at),
        node_time: s(at),
        mark: None,
        marked: None,
        confirmation: Confirmation::NotNeeded,
    }
}

fn healthy_continuity(at: u64) -> Continuity {
    let mut continuity = Continuity::new(settings());
    assert_eq!(continuity.heartbeat(&healthy(at), s(at)), HeartbeatActions::default());
    assert_eq!(continuity.check_claims(&healthy(at).observation(), s(at)), Ok(()));
    continuity
}

/// As [`healthy_continuity`], and the store has confirmed a mark.
fn marked_continuity(at: u64) -> Continuity {
    let mut continuity = Continuity::new(settings());
    let seen = Heartbeat { marked: Some(at), ..healthy(at) };
    assert_eq!(continuity.heartbeat(&seen, s(at)), HeartbeatActions::default());
    continuity
}

/// Puts the epoch that a heartbeat wrote into `next`, read a second later.
fn apply_write(actions: &HeartbeatActions, next: &mut Heartbeat) {
    let write = actions.write.as_ref().expect("an epoch is due");
    next.epoch = Some(write.epoch.clone());
    next.epoch_age = Epoch::age(write.lifetime.saturating_sub(s(1)));
}

#[test]
fn claims_count_only_for_a_second_after_a_heartbeat() {
    let mut continuity = Continuity::new(settings());
    let batch = healthy(1000).observation();
    assert_eq!(continuity.check_claims(&batch, s(1000)), Err(Unknown::Absent));
    continuity.heartbeat(&healthy(1000), s(1000));
    assert_eq!(continuity.check_claims(&batch, s(1001)), Ok(()));
    assert_eq!(continuity.check_claims(&batch, s(1002)), Err(Unknown::Slow));
    continuity.disconnected();
    assert_eq!(continuity.check_claims(&batch, s(1001)), Err(Unknown::Absent));
}

#[test]
fn rfc8446_8_2_a_missing_or_mismatched_epoch_is_replaced_and_a_window_starts() {
    let other_settings =
        Epoch { settings: SharedConfig { freshness: s(11), ..settings() }, ..epoch_of("p", "r") };
    let other_slots = Epoch { slots: Slots::of([(0, 9)]), ..epoch_of("p", "r") };
    let (other_process, other_history) = (epoch_of("q", "r"), epoch_of("p", "q"));
    let others = [other_process, other_history, other_settings, other_slots].map(Some);
    for epoch in std::iter::once(None).chain(others) {
        let mut continuity = healthy_continuity(999);
        let seen = Heartbeat { epoch, ..healthy(1000) };
        let actions = continuity.heartbeat(&seen, s(1000));
        let write = EpochWrite { epoch: epoch_of("p", "r"), lifetime: Epoch::LIFETIME };
        assert_eq!(actions, HeartbeatActions { write: Some(write), dropped: None });
        assert_eq!(continuity.check_claims(&seen.observation(), s(1000)), Err(Unknown::Window));

        let young = Heartbeat { epoch_age: s(51), ..healthy(1051) };
        assert_eq!(continuity.heartbeat(&young, s(1051)), HeartbeatActions::default());
        assert_eq!(continuity.check_claims(&young.observation(), s(1051)), Err(Unknown::Window));
        let old = Heartbeat { epoch_age: s(52), ..healthy(1052) };
        continuity.heartbeat(&old, s(1052));
        assert_eq!(continuity.check_claims(&old.observation(), s(1052)), Ok(()));
    }
}

#[test]
fn a_master_with_more_slots_needs_a_new_epoch() {
    let (few, more) = (Slots::of([(0, 9)]), Slots::of([(0, 10)]));
    let with = |epoch, slots| Heartbeat {
        epoch: Some(Epoch { slots: epoch, ..epoch_of("p", "r") }),
        slots,
        ..healthy(1000)
    };
    // Also for a node that starts later.
    for mut continuity in [healthy_continuity(999), Continuity::new(settings())] {
        let actions = continuity.heartbeat(&with(few, more), s(1000));
        assert_eq!(actions.write.map(|write| write.epoch.slots), Some(more));
        let batch = with(few, more).observation();
        assert_eq!(continuity.check_claims(&batch, s(1000)), Err(Unknown::Window));
        assert_eq!(continuity.check_record(&batch, s(1000)), Ok(()));
        let next = Heartbeat { mark: Some(1000), ..with(more, more) };
        assert_eq!(continuity.heartbeat(&next, s(1000)), HeartbeatActions::default());
        assert_eq!(continuity.check_claims(&next.observation(), s(1000)), Ok(()));
    }
    // A node whose map no majority confirms does not replace the epoch.
    let unconfirmed = Heartbeat { confirmation: Confirmation::Majority(None), ..with(more, few) };
    assert_eq!(Continuity::new(settings()).heartbeat(&unconfirmed, s(1)).write, None);
}

#[test]
fn rfc8446_8_2_a_store_reset_to_a_snapshot_starts_a_window() {
    for mark in [None, Some(0), Some(999)] {
        let mut continuity = marked_continuity(1000);
        // Also on another connection, some time later.
        continuity.disconnected();
        let reverted = Heartbeat { mark, marked: Some(1060), ..healthy(1060) };
        let actions = continuity.heartbeat(&reverted, s(1060));
        assert_eq!(
            actions.write.as_ref().map(|write| write.lifetime),
            Some(Epoch::LIFETIME),
            "{mark:?}"
        );
        assert_eq!(continuity.check_claims(&reverted.observation(), s(1060)), Err(Unknown::Window));
        let mut next = healthy(1061);
        apply_write(&actions, &mut next);
        next.mark = Some(1060);
        assert_eq!(continuity.heartbeat(&next, s(1061)), HeartbeatActions::default());
        // Another node that notices later accepts an epoch from after the reset, and no older one.
        for (age, counts) in [(59, true), (61, false)] {
            let mut late = marked_continuity(1000);
            let seen = Heartbeat { mark, epoch_age: s(age), ..healthy(1060) };
            assert_eq!(late.heartbeat(&seen, s(1060)).write.is_none(), counts, "{age}");
            assert_eq!(late.check_claims(&seen.observation(), s(1060)).is_ok(), counts, "{age}");
        }
    }
}

#[test]
fn an_unconfirmed_or_expired_mark_is_no_gap() {
    // The store has a later mark than the last confirmed one.
    let mut continuity = marked_continuity(1000);
    let seen = Heartbeat { mark: Some(1001), marked: Some(1002), ..healthy(1002) };
    assert_eq!(continuity.heartbeat(&seen, s(1002)), HeartbeatActions::default());
    // The store refused a mark, so it still has the previous one.
    let full = Heartbeat { mark: Some(1002), marked: None, ..healthy(1003) };
    assert_eq!(continuity.heartbeat(&full, s(1003)), HeartbeatActions::default());
    let next = Heartbeat { mark: Some(1002), ..healthy(1004) };
    assert_eq!(continuity.heartbeat(&next, s(1004)).write, None);
    // The mark has expired.
    let mut continuity = marked_continuity(1000);
    let gone = |at| Heartbeat { mark: None, epoch_age: s(10_000), ..healthy(at) };
    assert!(continuity.clone().heartbeat(&gone(4599), s(4599)).write.is_some());
    assert_eq!(continuity.heartbeat(&gone(4600), s(4600)).write, None);
    // Another process: only its epoch matters.
    let mut continuity = marked_continuity(1000);
    continuity.disconnected();
    let epoch = Some(epoch_of("q", "r"));
    let other = Heartbeat { run_id: "q".into(), epoch, mark: None, ..healthy(1100) };
    assert_eq!(continuity.heartbeat(&other, s(1100)), HeartbeatActions::default());
}

#[test]
fn only_a_node_whose_clock_agrees_with_the_stores_writes_an_epoch() {
    for (node, writes) in [(993, false), (994, true), (1006, true), (1007, false)] {
        let seen = Heartbeat { epoch: None, node_time: s(node), ..healthy(1000) };
        let actions = Continuity::new(settings()).heartbeat(&seen, s(1));
        assert_eq!(actions.write.is_some(), writes, "{node}");
    }
}

#[test]
fn a_changed_process_history_role_or_offset_drops_the_connection() {
    for (seen, reason) in [
        (Heartbeat { run_id: "q".into(), ..healthy(1001) }, DropReason::Process),
        (Heartbeat { replication_id: "q".into(), ..healthy(1001) }, DropReason::Replication),
        (Heartbeat { role: Role::Replica, ..healthy(1001) }, DropReason::Role),
        (Heartbeat { replication_offset: 999, ..healthy(1001) }, DropReason::Offset),
    ] {
        let mut continuity = healthy_continuity(1000);
        let actions = continuity.heartbeat(&seen, s(1001));
        assert_eq!(actions.dropped, Some(reason));
        assert_eq!(actions.write.is_some(), reason != DropReason::Role, "{reason:?}");
        assert_eq!(continuity.check_claims(&seen.observation(), s(1001)), Err(Unknown::Absent));
    }
}

#[test]
fn an_offset_that_went_back_needs_a_younger_epoch_also_after_reconnecting() {
    let mut continuity = healthy_continuity(1000);
    let actions =
        continuity.heartbeat(&Heartbeat { replication_offset: 999, ..healthy(1001) }, s(1001));
    // The write was lost with the connection.
    let again = continuity.heartbeat(&healthy(1002), s(1002));
    assert_eq!((again.dropped, &again.write), (None, &actions.write));
    assert_eq!(
        continuity.check_claims(&healthy(1002).observation(), s(1002)),
        Err(Unknown::Window)
    );
    let mut next = healthy(1003);
    apply_write(&again, &mut next);
    assert_eq!(continuity.heartbeat(&next, s(1003)), HeartbeatActions::default());
}

#[test]
fn a_batch_from_another_process_than_the_heartbeats_does_not_count() {
    let continuity = healthy_continuity(1000);
    let other = StoreObservation {
        run_id: "q".into(),
        epoch: Some(epoch_of("q", "r")),
        ..healthy(1000).observation()
    };
    assert_eq!(check_observation(&settings(), &other), Ok(()), "by itself");
    assert_eq!(continuity.check_claims(&other, s(1000)), Err(Unknown::Window));
}

#[test]
fn a_record_counts_before_claims_do() {
    let evicting =
        Heartbeat { maxmemory: 1 << 20, maxmemory_policy: "allkeys-lru".into(), ..healthy(1000) };
    for seen in [
        healthy(1000),
        Heartbeat { epoch_age: s(1), ..healthy(1000) },
        Heartbeat { epoch: None, ..healthy(1000) },
        Heartbeat { node_time: s(900), ..healthy(1000) },
        Heartbeat { node_time: s(1100), ..healthy(1000) },
        evicting,
    ] {
        let mut continuity = Continuity::new(settings());
        continuity.heartbeat(&seen, s(1000));
        let batch = seen.observation();
        assert_eq!(continuity.check_claims(&batch, s(1000)).is_ok(), seen == healthy(1000));
        assert_eq!(continuity.check_record(&batch, s(1000)), Ok(()));
        // A slow store's heartbeats come every two seconds.
        assert_eq!(continuity.check_record(&batch, s(1004)), Ok(()));
        assert_eq!(continuity.check_record(&batch, s(1005)), Err(Unknown::Slow));
        continuity.disconnected();
        assert_eq!(continuity.check_record(&batch, s(1000)), Err(Unknown::Absent));
    }
}

#[test]
fn a_record_counts_only_in_the_confirmed_master_of_the_heartbeats() {
    let continuity = healthy_continuity(1000);
    let batch = healthy(1000).observation();
    let other_process = StoreObservation { run_id: "q".into(), ..batch.clone() };
    let other_history = StoreObservation { replication_id: "q".into(), ..batch.clone() };
    assert_eq!(continuity.check_record(&other_process, s(1000)), Err(Unknown::Absent));
    assert_eq!(continuity.check_record(&other_history, s(1000)), Err(Unknown::Absent));
    let mut continuity = Continuity::new(settings());
    let confirmed_at = |at| Heartbeat { confirmation: Confirmation::Majority(at), ..healthy(1000) };
    continuity.heartbeat(&confirmed_at(None), s(10));
    assert_eq!(continuity.check_record(&batch, s(10)), Err(Unknown::Absent));
    continuity.heartbeat(&confirmed_at(Some(s(6))), s(10));
    assert_eq!(continuity.check_record(&batch, s(11)), Ok(()));
    assert_eq!(continuity.check_record(&batch, s(12)), Err(Unknown::Absent));
    continuity.heartbeat(&Heartbeat { role: Role::Replica, ..healthy(1000) }, s(12));
    assert_eq!(continuity.check_record(&batch, s(12)), Err(Unknown::Absent));
}

#[test]
fn a_store_that_may_evict_does_not_count_until_a_window_after() {
    let mut continuity = healthy_continuity(1000);
    let evicting = |at| Heartbeat {
        maxmemory: 1 << 20,
        maxmemory_policy: "allkeys-lru".into(),
        ..healthy(at)
    };
    let actions = continuity.heartbeat(&evicting(1001), s(1001));
    let mut next = evicting(1002);
    apply_write(&actions, &mut next);
    assert_eq!(
        continuity.check_claims(&evicting(1001).observation(), s(1001)),
        Err(Unknown::Evicting)
    );
    assert_eq!(continuity.heartbeat(&next, s(1002)), HeartbeatActions::default(), "void already");
    // A node that starts afterwards, and has not seen the evictions.
    let void = Heartbeat { epoch: next.epoch, epoch_age: s(500), ..healthy(1500) };
    let mut new_node = Continuity::new(settings());
    let actions = new_node.heartbeat(&void, s(1));
    assert_eq!(actions.write.map(|write| write.epoch), Some(epoch_of("p", "r")));
    assert_eq!(new_node.check_claims(&void.observation(), s(1)), Err(Unknown::Window));
    // A node that saw the evictions does not accept an epoch from before them.
    continuity.heartbeat(&evicting(1500), s(1500));
    let before = Heartbeat { epoch_age: s(400), ..healthy(1501) };
    assert!(continuity.heartbeat(&before, s(1501)).write.is_some());
    assert_eq!(continuity.check_claims(&before.observation(), s(1501)), Err(Unknown::Window));
}

#[test]
fn a_store_without_a_memory_limit_or_with_noeviction_counts() {
    for (maxmemory, policy) in [(1 << 20, "noeviction"), (0, "allkeys-lru")] {
        let seen = Heartbeat { maxmemory, maxmemory_policy: policy.into(), ..healthy(1000) };
        let mut continuity = Continuity::new(settings());
        assert_eq!(continuity.heartbeat(&seen, s(1)), HeartbeatActions::default());
        assert_eq!(continuity.status(s(1)), Ok(()));
    }
}

#[test]
fn a_growing_evicted_keys_counter_is_a_gap() {
    let mut continuity = healthy_continuity(1000);
    let seen = Heartbeat { evicted_keys: 1, ..healthy(1001) };
    assert!(continuity.heartbeat(&seen, s(1001)).write.is_some());
    assert_eq!(continuity.check_claims(&seen.observation(), s(1001)), Err(Unknown::Window));
}

#[test]
fn a_master_counts_for_a_while_after_a_majority_named_it() {
    let mut continuity = Continuity::new(settings());
    let confirmed_at = |at| Heartbeat { confirmation: Confirmation::Majority(at), ..healthy(1000) };
    continuity.heartbeat(&confirmed_at(None), s(10));
    assert_eq!(continuity.status(s(10)), Err(Unknown::Absent));
    continuity.heartbeat(&confirmed_at(Some(s(6))), s(10));
    assert_eq!(continuity.status(s(11)), Ok(()));
    continuity.heartbeat(&confirmed_at(Some(s(6))), s(11));
    assert_eq!(continuity.status(Duration::from_millis(11_001)), Err(Unknown::Absent));
}

#[test]
fn an_epoch_is_written_only_once_a_majority_confirms_the_master() {
    let mut continuity = Continuity::new(settings());
    let confirmed_at =
        |at| Heartbeat { confirmation: Confirmation::Majority(at), epoch: None, ..healthy(1000) };
    assert_eq!(continuity.heartbeat(&confirmed_at(None), s(10)).write, None);
    assert_eq!(continuity.heartbeat(&confirmed_at(Some(s(4))), s(10)).write, None);
    assert!(continuity.heartbeat(&confirmed_at(Some(s(5))), s(10)).write.is_some());
}

#[test]
fn rfc8446_8_2_setting_the_stores_clock_back_starts_a_window_longer_by_the_step() {
    let mut continuity = healthy_continuity(1000);
    let mut back = Heartbeat { replication_offset: 1001, epoch_age: s(40), ..healthy(940) };
    // A batch before the next heartbeat.
    assert_eq!(continuity.check_claims(&back.observation(), s(1000)), Err(Unknown::Clock));
    let actions = continuity.heartbeat(&back, s(1001));
    assert_eq!(actions.write.as_ref().map(|write| write.lifetime), Some(Epoch::LIFETIME + s(60)));
    assert_eq!(continuity.check_claims(&back.observation(), s(1001)), Err(Unknown::Window));
    // The epoch's lifetime is extended until the clock has caught up.
    back.store_time = s(999);
    back.node_time = s(999);
    assert_eq!(
        continuity.heartbeat(&back, s(1060)).write.map(|w| w.lifetime),
        Some(Epoch::LIFETIME + s(1))
    );
    let young = Heartbeat { epoch_age: s(1), ..healthy(1002) };
    assert_eq!(continuity.heartbeat(&young, s(1062)), HeartbeatActions::default());
}

#[test]
fn a_stores_clock_that_was_far_ahead_of_the_nodes_costs_one_window() {
    let mut continuity = healthy_continuity(1000);
    let ahead = Heartbeat { node_time: s(1001), ..healthy(1_000_000) };
    assert_eq!(continuity.heartbeat(&ahead, s(1001)).write, None, "the epoch is there");
    assert_eq!(continuity.check_claims(&ahead.observation(), s(1001)), Err(Unknown::Clock));
    let back = Heartbeat { replication_offset: 2_000_000, ..healthy(1002) };
    let actions = continuity.heartbeat(&back, s(1002));
    assert_eq!(actions.write.map(|write| write.lifetime), Some(Epoch::LIFETIME));
}

#[test]
fn clocks_that_were_set_back_by_years_cost_one_window() {
    let year = 365 * 86_400;
    let mut continuity = healthy_continuity(1000 + year);
    let back = Heartbeat { replication_offset: 2 * year, ..healthy(1000) };
    let actions = continuity.heartbeat(&back, s(1000 + year));
    assert_eq!(actions.write.map(|write| write.lifetime), Some(Epoch::LIFETIME));
}

#[test]
fn small_steps_back_add_up() {
    let mut continuity = healthy_continuity(1000);
    let at = |ms| Heartbeat {
        store_time: Duration::from_millis(ms),
        replication_offset: 2000,
        ..healthy(1000)
    };
    assert_eq!(continuity.heartbeat(&at(999_700), s(1000)).write, None);
    assert!(continuity.heartbeat(&at(999_400), s(1000)).write.is_some());
}

#[test]
fn another_process_may_be_behind_by_two_margins_and_waits_longer_beyond() {
    for (behind, ahead) in [(12, 0), (13, 13), (60, 60)] {
        let mut continuity = healthy_continuity(1000);
        continuity.disconnected();
        let new = Heartbeat { run_id: "q".into(), ..healthy(1010 - behind) };
        let actions = continuity.heartbeat(&new, s(1010));
        let lifetime = actions.write.expect("a new process").lifetime;
        assert_eq!(lifetime, Epoch::LIFETIME + s(ahead), "{behind}");
    }
}

proptest! {
    /// No reply of a store causes a panic, and no claim counts without a matching epoch.
    #[test]
    fn claims_count_only_with_an_old_epoch_and_clocks_that_agree(
        beats in prop::collection::vec(
            (0u64..200, 0u64..200, 0u64..200, 0u8..3, 0u8..2, 0u64..3, any::<bool>()),
            1..20,
        ),
    ) {
        let mut continuity = Continuity::new(settings());
        let mut now = s(0);
        for (store, node, age, run_id, role, offset, epoch) in beats {
            now += Continuity::HEARTBEAT;
            let run_id = ["p", "q", "r"][usize::from(run_id)];
            let seen = Heartbeat {
                run_id: run_id.into(),
                role: if role == 0 { Role::Replica } else { Role::Master },
                replication_offset: offset,
                epoch: epoch.then(|| epoch_of("p", "r")),
                epoch_age: s(age),
                node_time: s(node),
                ..healthy(store)
            };
            let actions = continuity.heartbeat(&seen, now);
            let counts = continuity.check_claims(&seen.observation(), now).is_ok();
            let has_valid_epoch = epoch && run_id == "p" && role == 1 && age >= 52;
            let may_count = has_valid_epoch && store.abs_diff(node) <= 6;
            prop_assert!(!counts || may_count);
            prop_assert!(!(counts && actions != HeartbeatActions::default()));
        }
    }
}
