/*
 * A report in JSON: its schema, and that it says what the text says.
 */
#include "reports.h"

static void json_follows_the_schema_and_the_books_balance(void **state) {
    (void)state;
    add_typical(0);
    report_set_driver_version(13000);
    assert_json(
        report_in(REPORT_JSON),
        "assert r['driver_version']==13000 and r['reason']=='exit' and len(r['devices'])==1\n"
        "assert r['host_bytes']==3<<19\n"
        "assert d['device']==0 and d['name']=='NVIDIA H200' and d['uuid'].startswith('GPU-')\n"
        "assert d['limit_bytes'] is None and d['backend']=='segments' and d['reuse']=='barrier'\n"
        "assert d['backend_reason']=='as asked'\n"
        "assert d['peaks_exact'] is True and d['peak_error_bytes']==0\n"
        "assert "
        "d['ready_bytes']+d['pending_bytes']+d['allocated_bytes']['current']==d['reserved_bytes']['"
        "current']\n"
        "assert "
        "d['releasable_bytes']+d['non_releasable_bytes']==d['ready_bytes']+d['pending_bytes']\n"
        "for k in "
        "'requested_bytes','allocated_bytes','active_bytes','reserved_bytes','allocations','"
        "segments':\n"
        "    assert d[k]['total']-d[k]['freed']==d[k]['current'], k\n"
        "assert d['allocations']['total']==123456789 and d['cpu_wait_seconds']==1.23456789\n"
        "f=d['fragmentation']\n"
        "assert f['internal']==0.25 and f['external']==0.75 and f['largest_free_bytes']==156<<20\n"
        "assert f['free_blocks']==7 and abs(f['peak_reserved_over_peak_requested']-1536/900)<1e-5\n"
        "assert [c['upper_bytes'] for c in d['size_classes']]==[512,512<<12,None]\n"
        "assert d['live'][0]=={'bytes':149<<20,'count':2,'stack':[]} and len(d['live'])==2\n"
        "assert d['outside_bytes']['pinned_host']['current']==1<<30\n");
}

static void json_keeps_every_digit_of_the_largest_figures(void **state) {
    (void)state;
    add_typical(1)->limit_bytes = 8 * GIB;
    add_extreme(2);
    assert_json(report_in(REPORT_JSON),
                "assert [x['device'] for x in r['devices']]==[1,2] and d['limit_bytes']==8<<30\n"
                "e=r['devices'][1]\n"
                "assert e['reserved_bytes']['total']==2**64-1 and e['epochs']==2**64-1\n"
                "assert e['peaks_exact'] is False and e['peak_error_bytes']>0\n"
                "assert len(e['size_classes'])==22 and len(e['live'])==16\n");
}

static void json_survives_strange_names_and_no_devices(void **state) {
    (void)state;
    assert_json(report_in(REPORT_JSON), "assert r['devices']==[]\n");
    struct stats_device *device = add_typical(0);
    strcpy(device->name, "a\"b\\\n\xff\xe2\x82\xac");
    device->backend = device->backend_reason = device->reuse = NULL;
    assert_json(report_in(REPORT_JSON), "assert d['name']=='a\"b\\\\\\n\\ufffd\\u20ac'\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(json_follows_the_schema_and_the_books_balance),
        TEST(json_keeps_every_digit_of_the_largest_figures),
        TEST(json_survives_strange_names_and_no_devices),
    };
    options_load();
    return cmocka_run_group_tests_name("report json", tests, NULL, NULL);
}
