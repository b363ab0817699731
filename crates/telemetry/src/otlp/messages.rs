//! Converts spans and metrics to OTLP messages.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as ProtoValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as ProtoKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan, Status};

use crate::metrics::{self, Family, HistogramValue, Kind, Series, Snapshot};
use crate::otlp::{AttributeValue, Span, SpanKind, SpanStatus};

/// Builds the message for spans of the service with the attributes `resource`.
pub(crate) fn traces(resource: &[(String, String)], spans: &[Span]) -> ExportTraceServiceRequest {
    let spans = spans.iter().map(span).collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource_message(resource)),
            scope_spans: vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }],
            ..ResourceSpans::default()
        }],
    }
}

/// Builds the message for metrics of the service, counted since `started`.
pub(crate) fn metrics(
    resource: &[(String, String)],
    snapshot: &Snapshot,
    (started, now): (SystemTime, SystemTime),
) -> ExportMetricsServiceRequest {
    let times = (nanos(started), nanos(now));
    let metrics = snapshot.families.iter().map(|family| metric(family, times)).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource_message(resource)),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "firstflight".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn resource_message(attributes: &[(String, String)]) -> Resource {
    let attributes = attributes.iter().map(|(name, value)| text(name, value)).collect();
    Resource { attributes, ..Resource::default() }
}

fn span(span: &Span) -> ProtoSpan {
    let kind = match span.kind {
        SpanKind::Server => ProtoKind::Server,
        SpanKind::Client => ProtoKind::Client,
        SpanKind::Internal => ProtoKind::Internal,
    };
    let status = match span.status {
        SpanStatus::Unset => None,
        SpanStatus::Error => Some(Status { code: StatusCode::Error.into(), ..Status::default() }),
    };
    let attributes = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    ProtoSpan {
        trace_id: span.trace.0.to_vec(),
        span_id: span.id.0.to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.0.to_vec()),
        name: span.name.to_string(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.started),
        end_time_unix_nano: nanos(span.ended),
        attributes,
        status,
        ..ProtoSpan::default()
    }
}

fn attribute(name: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(value) => ProtoValue::StringValue(value.to_string()),
        AttributeValue::Int(value) => ProtoValue::IntValue(*value),
        AttributeValue::Bool(value) => ProtoValue::BoolValue(*value),
    };
    key_value(name, value)
}

fn text(name: &str, value: &str) -> KeyValue {
    key_value(name, ProtoValue::StringValue(value.to_owned()))
}

fn key_value(name: &str, value: ProtoValue) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn metric(family: &Family, times: (u64, u64)) -> Metric {
    let points = || family.series.iter().map(|series| point(series, times)).collect();
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.description.kind {
        Kind::Counter => metric::Data::Sum(Sum {
            data_points: points(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        Kind::Histogram => metric::Data::Histogram(Histogram {
            data_points: family
                .series
                .iter()
                .filter_map(|series| histogram(series, times))
                .collect(),
            aggregation_temporality: cumulative,
        }),
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: points() }),
    };
    Metric {
        // The name that scrapers of OpenMetrics use.
        name: family.description.family().to_owned(),
        description: family.description.help.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn point(series: &Series, (started, now): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: labels(series),
        start_time_unix_nano: started,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(series.value.number())),
        ..NumberDataPoint::default()
    }
}

fn histogram(series: &Series, (started, now): (u64, u64)) -> Option<HistogramDataPoint> {
    let metrics::SeriesValue::Histogram(value) = &series.value else { return None };
    Some(HistogramDataPoint {
        attributes: labels(series),
        start_time_unix_nano: started,
        time_unix_nano: now,
        count: value.count(),
        sum: monotonic_sum(value),
        bucket_counts: value.buckets.clone(),
        explicit_bounds: value.bounds.to_vec(),
        ..HistogramDataPoint::default()
    })
}

/// Returns the sum of observations. OTLP allows none if observations may be negative, because the
/// sum could decrease.
fn monotonic_sum(value: &HistogramValue) -> Option<f64> {
    let may_decrease = value.bounds.first().is_some_and(|bound| *bound < 0.0);
    (!may_decrease).then_some(value.sum)
}

fn labels(series: &Series) -> Vec<KeyValue> {
    series.labels.iter().map(|(name, value)| text(name, value)).collect()
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::metrics::Description;

    static TIMES: Description = Description::histogram("times_seconds", "Times.", "");
    static EVENTS: Description = Description::counter("events_total", "Events.", "");

    fn times(bounds: &'static [f64], buckets: &[u64]) -> Metric {
        let bounds = Cow::Borrowed(bounds);
        let value = HistogramValue { bounds, buckets: buckets.to_vec(), sum: 9.5 };
        let labels = vec![("k", Cow::Borrowed("a"))];
        let series = vec![Series { labels, value: metrics::SeriesValue::Histogram(value) }];
        metric(&Family { description: &TIMES, labels: Vec::new(), series }, (1, 2))
    }

    fn points(metric: Metric) -> Vec<HistogramDataPoint> {
        let Some(metric::Data::Histogram(histogram)) = metric.data else { panic!("no histogram") };
        histogram.data_points
    }

    #[test]
    fn buckets_contain_counts_between_bounds() {
        let points = points(times(&[0.1, 1.0], &[2, 3, 1]));
        assert_eq!(points.len(), 1);
        assert_eq!(points[0].bucket_counts, [2, 3, 1]);
        assert_eq!(points[0].explicit_bounds, [0.1, 1.0]);
        assert_eq!((points[0].count, points[0].sum), (6, Some(9.5)));
        assert_eq!(points[0].attributes, [text("k", "a")]);
    }

    #[test]
    fn a_histogram_of_negative_values_has_a_count_and_no_sum() {
        let points = points(times(&[-1.0, 1.0], &[2, 3, 1]));
        assert_eq!((points[0].count, points[0].sum), (6, None));
    }

    #[test]
    fn a_counter_is_a_monotonic_sum_under_its_family_name() {
        let series = vec![Series { labels: Vec::new(), value: metrics::SeriesValue::Count(4) }];
        let metric = metric(&Family { description: &EVENTS, labels: Vec::new(), series }, (1, 2));
        assert_eq!(metric.name, "events");
        let Some(metric::Data::Sum(sum)) = metric.data else { panic!("no sum") };
        assert!(sum.is_monotonic && sum.data_points.len() == 1);
        let value = number_data_point::Value::AsDouble(4.0);
        assert_eq!(sum.data_points[0].value, Some(value));
    }
}
