//! The experiments, by topic.

mod connections;
mod protocols;
mod requests;
mod responses;
mod tickets;
mod windows;

use firstflight_browser::Installed;

/// One experiment with one browser.
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    /// Whether it runs with all other tests, and not only with BROWSERS=all.
    pub(crate) short: bool,
    pub(crate) run: fn(&Installed) -> Result<(), String>,
}

const fn short(name: &'static str, run: fn(&Installed) -> Result<(), String>) -> Experiment {
    Experiment { name, short: true, run }
}

const fn long(name: &'static str, run: fn(&Installed) -> Result<(), String>) -> Experiment {
    Experiment { name, short: false, run }
}

/// All experiments.
pub(crate) const ALL: &[Experiment] = &[
    short("return_visits_send_gets_early_and_posts_late", requests::pages_and_posts),
    short("rfc8470_5_2_how_it_handles_425", responses::too_early),
    short("a_second_tab_uses_the_tickets_of_the_first", windows::second_tab),
    short("rfc8446_c_4_how_many_tickets_it_keeps", tickets::four),
    short("every_return_over_http_3_is_early", protocols::returns_over_http_3),
    long("which_methods_it_sends_early", requests::methods),
    long("images_come_early_while_tickets_last", requests::images),
    long("how_it_handles_refused_early_data", responses::refused),
    long("how_it_handles_425_to_every_request", responses::always_too_early),
    long("how_it_handles_changed_tls_settings", responses::changes),
    long("how_many_tickets_of_one_to_eight_it_keeps", tickets::counts),
    long("how_parallel_connections_use_tickets", tickets::parallel_connections),
    long("how_long_it_keeps_tickets", tickets::lifetimes),
    long("what_clears_its_tickets", windows::clearing),
    long("how_windows_frames_and_sites_share_tickets", windows::partitions),
    long("reload_and_back", windows::history),
    long("which_tcp_and_tls_features_it_uses", connections::tcp_and_tls),
    long("without_its_switch_nothing_is_early", connections::early_data_off),
    long("which_connections_it_opens_speculatively", connections::speculation),
    long("how_host_names_of_one_server_share_tickets", connections::other_host_names),
    long("early_data_over_http_2", protocols::http_2),
    long("early_data_over_http_3", protocols::http_3),
    long(
        "every_return_with_an_expired_address_token_is_early",
        protocols::returns_with_expired_tokens,
    ),
];
