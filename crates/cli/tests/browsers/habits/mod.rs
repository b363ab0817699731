//! The experiments, by what they ask.

mod connections;
mod protocols;
mod requests;
mod responses;
mod tickets;
mod windows;

use firstflight_browser::Installed;

/// One experiment with one browser.
pub(crate) struct Habit {
    pub(crate) name: &'static str,
    /// It belongs to the short form, which runs with all other tests.
    pub(crate) short: bool,
    pub(crate) run: fn(&Installed) -> Result<(), String>,
}

const fn short(name: &'static str, run: fn(&Installed) -> Result<(), String>) -> Habit {
    Habit { name, short: true, run }
}

const fn long(name: &'static str, run: fn(&Installed) -> Result<(), String>) -> Habit {
    Habit { name, short: false, run }
}

/// All experiments.
pub(crate) const ALL: &[Habit] = &[
    short("a_return_visit_is_early_and_a_post_is_not", requests::pages_and_posts),
    short("rfc8470_5_2_what_a_425_makes_it_do", responses::too_early),
    short("a_second_tab_uses_the_tickets_of_the_first", windows::second_tab),
    short("rfc8446_c_4_how_many_tickets_it_keeps", tickets::four),
    long("what_methods_it_sends_early", requests::methods),
    long("images_come_early_while_tickets_last", requests::images),
    long("what_refused_early_data_makes_it_do", responses::refused),
    long("what_a_425_for_ever_makes_it_do", responses::always_too_early),
    long("what_else_of_tls_may_change", responses::changes),
    long("how_many_tickets_of_one_to_eight_it_keeps", tickets::counts),
    long("connections_side_by_side_share_tickets", tickets::side_by_side),
    long("how_long_it_keeps_tickets", tickets::lifetimes),
    long("what_ends_its_tickets", windows::endings),
    long("windows_frames_and_sites_and_their_tickets", windows::partitions),
    long("reload_and_back", windows::history),
    long("what_its_tcp_and_tls_look_like", connections::looks),
    long("without_its_switch_nothing_is_early", connections::without_switch),
    long("what_connections_it_opens_ahead", connections::ahead),
    long("names_of_one_server_and_their_tickets", connections::names),
    long("what_it_does_over_http_2", protocols::http_2),
    long("what_it_does_over_http_3", protocols::http_3),
];
