/*
 * Tests reports in JSON: the schema, and the same values as in the text.
 */
#include "reports.h"

static void json_follows_the_schema_and_the_counters_agree(void **state) {
    (void)state;
    add_typical(0);
    report_set_driver_version(13000);
    assert_json(
        report_in(REPORT_JSON),
        "assert r['driver_version']==13000 and r['reason']=='exit' and len(r['devices'])==1\n"
        "assert r['host_bytes']==3<<19\n"
        "assert d['device']==0 and d['name']=='NVIDIA H200' and d['uuid'].startswith('GPU-')\n"
        "assert d['limit_bytes'] is None is d['limit_source'] and d['backend']=='segments' and "
        "d['reuse']=='barrier'\n"
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
        "assert f['internal']==0.25 and abs(f['external']-368/524)<1e-5 and "
        "f['largest_free_bytes']==156<<20\n"
        "assert f['free_blocks']==7 and abs(f['peak_reserved_over_peak_requested']-1536/900)<1e-5\n"
        "assert [c['upper_bytes'] for c in d['size_classes']]==[512,512<<12,None]\n"
        "assert d['live'][0]=={'bytes':149<<20,'count':2,'stack':[],'frames':[]} and "
        "len(d['live'])==2\n"
        "assert d['outside_bytes']['pinned_host']['current']==1<<30\n");
}

static void json_keeps_every_digit_of_the_largest_counters(void **state) {
    (void)state;
    struct stats_device *limited = add_typical(1);
    limited->limit_bytes = 8 * GIB;
    limited->limit_source = "CUDA_DEVICE_MEMORY_LIMIT_1";
    add_extreme(2);
    assert_json(report_in(REPORT_JSON),
                "assert [x['device'] for x in r['devices']]==[1,2] and d['limit_bytes']==8<<30\n"
                "assert d['limit_source']=='CUDA_DEVICE_MEMORY_LIMIT_1'\n"
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

static void json_shows_the_map_of_the_pool_in_rows(void **state) {
    (void)state;
    add_typical(0);
    the_map.count = 2;
    the_map.pieces[0] = (struct segment_piece){UINT64_C(0x7f0000000000), 8192, 4096, 1024, 1};
    the_map.pieces[1] = (struct segment_piece){0, UINT32_MAX, 0, 0, 0};
    assert_json(report_in(REPORT_JSON),
                "m=d['segment_map']\n"
                "assert m['merged_up_to_bytes']==0\n"
                "assert m['columns']==['address','bytes','live','cached','segments']\n"
                "assert m['pieces']==[[0x7f<<40,4<<20,2<<20,512<<10,1],[0,(2**32-1)*512,0,0,0]]\n");
    the_map.count = SEGMENT_MAP_PIECES;
    for (uint32_t i = 0; i < SEGMENT_MAP_PIECES; i++)
        the_map.pieces[i] = (struct segment_piece){UINT64_MAX, 4096, i % 2 ? 4096 : 0, 0, 1};
    for (int i = 1; i < 16; i++)
        add_typical(i);
    /* the number of rows is bounded, for a report of usual size */
    assert_json(report_in(REPORT_JSON),
                "maps=[x['segment_map'] for x in r['devices']]\n"
                "assert all(0<len(m['pieces'])<=32 and m['merged_up_to_bytes']>0 for m in maps)\n"
                "assert all(sum(p[1] for p in m['pieces'])==256*(2<<20) for m in maps)\n");
    the_map.count = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(json_follows_the_schema_and_the_counters_agree),
        TEST(json_keeps_every_digit_of_the_largest_counters),
        TEST(json_shows_the_map_of_the_pool_in_rows),
        TEST(json_survives_strange_names_and_no_devices),
    };
    options_load();
    return cmocka_run_group_tests_name("report json", tests, NULL, NULL);
}
