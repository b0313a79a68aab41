/* tests/engine/test_loss.c -- losses by name (engine/base/loss.h): the numbers that were published, and wrong names. */
#include "engine/base/loss.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

static struct loss named(const char *name, int depths, double factor)
{
    struct loss loss;
    vb_error err = {0};
    if (loss_named(&loss, name, depths, factor, &err))
        fail_msg("%s", err.message);
    return loss;
}

static void check_weights(const char *name, double factor, double main, const double want[3])
{
    struct loss loss = named(name, 3, factor);
    assert_int_equal(loss.depths, 3);
    if (loss.main != main)
        fail_msg("%s: the main loss has the weight %g, wanted %g", name, loss.main, main);
    for (int k = 0; k < 3; k++)
        if (!(fabs(loss.depth[k] - want[k]) <= 4 * 0x1p-53 * want[k]))
            fail_msg("%s: depth %d has the weight %.17g, wanted %.17g", name, k, loss.depth[k], want[k]);
}

TEST(losses_have_the_published_weights_of_depths)
{
    check_weights("megatron", -1, 1, (const double[]){0.1 / 3, 0.1 / 3, 0.1 / 3});
    check_weights("megatron", 0.3, 1, (const double[]){0.3 / 3, 0.3 / 3, 0.3 / 3});
    check_weights("fastmtp", -1, 0, (const double[]){1 / 1.96, 0.6 / 1.96, 0.36 / 1.96});
    check_weights("fastmtp", 0, 0, (const double[]){1, 0, 0});
    check_weights("sum", -1, 1, (const double[]){1, 1, 1});
    check_weights("eagle", -1, 0, (const double[]){1, 1, 1});
    check_weights("eagle3", -1, 0, (const double[]){1, 0.8, 0.64});
    check_weights("hass", -1, 0, (const double[]){1, 1, 1});
    /* FastMTP's model/config.json has mtp_loss_step_weights [0.51, 0.31, 0.18] */
    static const double published[] = {51, 31, 18};
    struct loss fastmtp = named("fastmtp", 3, -1);
    for (int k = 0; k < 3; k++)
        assert_true(round(100 * fastmtp.depth[k]) == published[k]);
}

TEST(losses_have_the_published_terms)
{
    struct loss eagle = named("eagle", 1, -1), hass = named("hass", 3, -1), eagle3 = named("eagle3", 7, -1),
                megatron = named("megatron", 0, -1);
    assert_true(eagle.terms.features == 1 && eagle.terms.soft == 0.1 && eagle.terms.data == 0 && eagle.terms.top == 0);
    assert_true(hass.terms.features == 1 && hass.terms.soft == 0.1 && hass.terms.data == 0 && hass.terms.top == 1 &&
                hass.terms.top_tokens == 10);
    assert_true(hass.detached && hass.chain == CHAIN_ALIGNED);
    assert_true(eagle3.terms.soft == 1 && !eagle3.detached && eagle3.chain == CHAIN_ALIGNED);
    assert_true(megatron.terms.data == 1 && megatron.chain == CHAIN_MODULES && megatron.depths == 0);
}

static void check_refusal(const char *name, int depths, double factor, const char *want)
{
    struct loss loss;
    vb_error err = {0};
    assert_int_equal(loss_named(&loss, name, depths, factor, &err), VB_BAD_ARGUMENT);
    assert_string_equal(err.message, want);
}

TEST(wrong_names_and_numbers_are_refused_in_one_sentence)
{
    check_refusal("medusa", 1, -1, "there is no loss \"medusa\", wanted megatron, fastmtp, sum, eagle, eagle3 or hass");
    check_refusal("sum", 16, -1, "16 depths of the loss sum, wanted 0 to 15");
    check_refusal("hass", -1, -1, "-1 depths of the loss hass, wanted 0 to 15");
    check_refusal("fastmtp", 1, INFINITY, "the factor of the loss fastmtp is inf, wanted a finite number");
    check_refusal("fastmtp", 1, NAN, "the factor of the loss fastmtp is nan, wanted a finite number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_have_the_published_weights_of_depths),
        cmocka_unit_test(losses_have_the_published_terms),
        cmocka_unit_test(wrong_names_and_numbers_are_refused_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
